"""Position embeddings that are looked up once for all examples get one row per example. The outputs do not change."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import antiphase as ap
from antiphase.torch._positions import expand_positions
from tests.torch.training import HOOKS, plan_for, private

# The second filter is for a warning that Opacus causes with functorch and an embedding.
pytestmark = [pytest.mark.filterwarnings(HOOKS, "ignore:In CPU autocast:UserWarning")]


class Positions(nn.Module):
    """Looks up the positions once and adds them to all examples, as models of transformers do."""

    __module__ = "transformers.models.example"

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(7, 4), nn.Embedding(5, 4)
        self.seen = []
        self.positions.register_forward_hook(lambda layer, inputs, output: self.seen.append(tuple(output.shape)))

    def forward(self, tokens, position_ids=None):
        places = torch.arange(tokens.shape[1])[None] if position_ids is None else position_ids
        return self.tokens(tokens) + self.positions(places)


@pytest.mark.parametrize("given", [False, True])
def test_the_row_is_repeated_for_every_example_in_training_only(given):
    module, tokens = Positions(), torch.randint(0, 7, (3, 5))
    inputs = {"tokens": tokens, **({"position_ids": torch.arange(5)[None]} if given else {})}
    before = module(**inputs)
    expand_positions(module)
    torch.testing.assert_close(module(**dict(reversed(inputs.items()))), before, rtol=0, atol=0)
    module.eval()(**inputs)
    with torch.no_grad():
        module.train()(**inputs)
    module(tokens=tokens[:1])
    module.positions(torch.arange(5)[None])  # not in a forward pass of the module
    assert module.seen == [(1, 5, 4), (3, 5, 4), (1, 5, 4), (1, 5, 4), (1, 5, 4), (1, 5, 4)]


class Kept(nn.ModuleDict):
    """A wrapper like that of PEFT for a layer that is trained in addition to the adapter."""

    __module__ = "peft.utils.other"

    def forward(self, places):
        return self["default"](places)


def test_wrappers_of_peft_are_looked_through():
    module, tokens = Positions(), torch.randint(0, 7, (3, 5))
    module.positions = Kept({"default": module.positions})
    expand_positions(module)
    module(tokens)
    assert module.seen == [(3, 5, 4)]


class First(nn.Module):
    """Looks up the positions once, and takes the first row of the result."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions, self.head = nn.Embedding(7, 4), nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        return self.head((self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1])[None])[0]).mean(1))


class OneByOne(nn.Module):
    """Processes the sentences of a batch one after another."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        return torch.stack([self.head(self.tokens(one[None]).mean(1))[0] for one in tokens])


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("kind", [First, OneByOne])
def test_rows_of_other_models_are_not_repeated(tmp_path, kind, mode):
    """The gradients of all examples would be those of the first one."""
    tokens = torch.randint(0, 7, (40, 5), generator=torch.Generator().manual_seed(0))
    dataset, plan = TensorDataset(tokens, tokens[:, 0] % 3), plan_for(participation=ap.MinSeparation(4))
    engine, module, optimizer, criterion, loader = private(
        tmp_path, plan, kind(), dataset=dataset, grad_sample_mode=mode
    )

    def step():
        x, y = next(iter(loader))
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()

    with engine, pytest.raises(ap.Refused, match=r"different number|second time|clipped gradients were summed"):
        step()


class FirstOfTransformers(First):
    __module__ = "transformers.models.example"


class Twice(First):
    __module__ = "transformers.models.example"

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1])[None]
        return self.head((self.tokens(tokens) + self.positions(places) + self.positions(places)).mean(1))


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
@pytest.mark.parametrize(("kind", "words"), [(FirstOfTransformers, "'positions.weight'"), (Twice, "called twice")])
def test_rows_that_are_repeated_and_not_used_are_noticed(tmp_path, kind, words, mode):
    tokens = torch.randint(0, 7, (40, 5), generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(tokens, tokens[:, 0] % 3)
    made = private(tmp_path, plan_for(), kind(), dataset=dataset, grad_sample_mode=mode)
    engine, module, optimizer, criterion, loader = made

    def step():
        x, y = next(iter(loader))
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()

    with engine, pytest.raises(ap.Refused, match=words):
        step()


def test_frozen_tables_are_left_alone():
    module = Positions()
    module.positions.requires_grad_(False)
    expand_positions(module)
    module(torch.randint(0, 7, (3, 5)))
    assert module.seen == [(1, 5, 4)]


def test_the_number_of_examples_is_forgotten_after_an_error():
    module = Positions()
    expand_positions(module)
    with pytest.raises(IndexError):
        module(torch.full((3, 5), 9))
    module.positions(torch.arange(5)[None])
    assert module.seen == [(1, 5, 4)]
