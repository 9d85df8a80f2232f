"""User-level privacy: the gradients of a user's examples are added, and the sum is clipped once."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import TrainingArguments

import antiphase as ap
import antiphase.torch
from antiphase.torch.huggingface import PrivateTrainer
from antiphase.torch.losses import CausalLMLoss, TokenLoss
from antiphase.torch.users import UserCollate, UserDataset, UserLoss, flatten_users
from tests.torch.training import HOOKS, SECRET, plan_for
from tests.torch.transformer_models import (
    QUIET,
    Recorder,
    Sentences,
    clipped_sum_by_hand,
    criterion_of,
    model_of,
    noise_of_first_step,
    trained,
)

# The second filter is for a warning that Opacus causes with functorch and an embedding.
IGNORED = (HOOKS, "ignore:In CPU autocast:UserWarning")
pytestmark = [pytest.mark.filterwarnings(*IGNORED), pytest.mark.usefixtures("same_run_id")]
LIMIT, BATCH, CLIP_NORM = 3, 4, 0.5


def users_of(kind):
    """Return a dataset of users with one to five sentences, of which at most three are used."""
    users = [user for user, size in enumerate([1, 2, 3, 4] * 3 + [5]) for _ in range(size)]
    return UserDataset(Sentences(kind, examples=35), [users[12 * i % 35] for i in range(35)], LIMIT)


def stacked(examples):
    return {name: torch.stack([e[name] for e in examples]) for name in examples[0]}


def collated():
    return UserCollate(stacked, LIMIT)


def own_loop(directory, kind, model, plan, mode, users):
    loss = UserLoss(criterion_of(kind), LIMIT)
    with antiphase.torch.PrivacyEngine(directory, secret=SECRET) as engine:
        made = engine.make_private(
            model,
            torch.optim.SGD(trained(model), lr=0.1),
            users,
            plan,
            criterion=loss,
            grad_sample_mode=mode,
            rows_per_example=LIMIT,
            loader_options={"collate_fn": collated()},
        )
        private, optimizer, loader = made[0], made[1], made[-1]
        loss = made[2] if mode == "ghost" else loss
        recorder = Recorder(optimizer, model)

        def loss_of(batch):
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            output = private(**flatten_users(inputs))
            return loss(output if kind == "gpt2" else output.logits, batch["labels"])

        private.train()
        for batch in loader:
            engine.check_independence(loss_of, batch)
            optimizer.zero_grad()
            loss_of(batch).backward()
            optimizer.step()
            break
    return recorder


def trainer(directory, kind, model, plan, mode, users):
    args = TrainingArguments(str(directory / "out"), per_device_train_batch_size=2, max_steps=1, **QUIET)
    options = {"grad_sample_mode": mode, "train_dataset": users, "secret": SECRET, "rows_per_user": LIMIT}
    with PrivateTrainer(model, args, plan=plan, run_directory=directory / "run", **options) as found:
        found.get_train_dataloader()
        recorder = Recorder(found._private_optimizer, model)
        found.train()
    return recorder


@pytest.mark.parametrize("loop", ["own", "trainer"])
@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_the_noisy_update_minus_the_noise(tmp_path, kind, mode, loop):
    users = users_of(kind)
    plan = plan_for(batch_size=BATCH, clip_norm=CLIP_NORM, examples=len(users), unit="user")
    model = model_of(kind, tied=False)
    initial = copy.deepcopy(model)
    if loop == "own":
        recorder = own_loop(tmp_path / "run", kind, model, plan, mode, users)
    else:
        recorder = trainer(tmp_path, kind, model, plan, mode, users)
    noise, indices = noise_of_first_step(tmp_path / "noise", initial, plan, recorder.names, len(users))
    assert {len(users[i]) for i in range(len(users))} == {1, 2, 3}
    found = recorder.steps[0] * BATCH - noise
    wanted = clipped_sum_by_hand(initial, [users[i] for i in indices], CLIP_NORM)
    assert (found - wanted).norm() < 1e-5 * CLIP_NORM * len(indices)


class Pictures(nn.Module):
    """A convolution and a normalisation. For several rows per user, ghost clipping has no formulas for these layers."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 3, padding=1)
        self.norm = nn.GroupNorm(1, 3)
        self.head = nn.Linear(3 * 5, 4)

    def forward(self, x):
        return self.head(self.norm(self.conv(x[:, None]).relu()).flatten(1))


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_convolutions(tmp_path, mode):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module, x, y = Pictures(), torch.randn(8, LIMIT, 5), torch.randint(0, 4, (8, LIMIT))
    initial = copy.deepcopy(module).double()
    plan = plan_for(batch_size=BATCH, clip_norm=CLIP_NORM, examples=8)
    loss = UserLoss(nn.CrossEntropyLoss(), LIMIT)
    with antiphase.torch.PrivacyEngine(tmp_path / "run", secret=SECRET) as engine:
        made = engine.make_private(
            module,
            torch.optim.SGD(module.parameters(), lr=0.1),
            torch.utils.data.TensorDataset(x, y),
            plan,
            criterion=loss,
            grad_sample_mode=mode,
            rows_per_example=LIMIT,
        )
        loss = made[2] if mode == "ghost" else loss
        recorder = Recorder(made[1], module)
        inputs, labels = next(iter(made[-1]))
        loss(made[0](inputs.flatten(0, 1)), labels).backward()
        made[1].step()
    noise, indices = noise_of_first_step(tmp_path / "noise", module, plan, recorder.names, 8)
    rows = []
    for i in indices:
        total = nn.functional.cross_entropy(initial(x[i].double()), y[i], reduction="sum")
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(total, list(initial.parameters()))]))
    factors = [min(1.0, CLIP_NORM / float(row.norm())) for row in rows]
    wanted = sum(f * row for f, row in zip(factors, rows, strict=True))
    assert (recorder.steps[0] * BATCH - noise - wanted).norm() < 1e-5


def test_padding_has_no_gradient_and_does_not_count():
    loss, labels = CausalLMLoss("none"), torch.randint(0, 5, (4, 3, 6))
    labels[0, 1:], labels[1, 2] = -100, -100
    logits = torch.randn(12, 6, 5, requires_grad=True)
    summed, mean = (UserLoss(loss, 3, reduction="none", within=w)(logits, labels) for w in ("sum", "mean"))
    torch.testing.assert_close(summed, mean * torch.tensor([1.0, 2.0, 3.0, 3.0]))
    summed.sum().backward()
    assert (logits.grad.flatten(1).norm(dim=1) == 0).tolist() == [False, True, True, False, False, True] + [False] * 6
    assert loss.reduction == "none"


@pytest.mark.parametrize(
    "ids",
    [[float("nan"), float("nan"), 1, 1], [None, None, 1, 1], [(torch.tensor(1),)] * 4, [object() for _ in range(4)]],
)
def test_ids_that_do_not_equal_their_copies_are_refused(ids):
    with pytest.raises(ap.InvalidArgument, match="would count as several users"):
        UserDataset(list("abcd"), ids, 2)


def test_ids_of_the_same_user_are_found_equal():
    ids = [torch.tensor(1), 1, np.int64(1), np.array([1, 2])[0], "a", np.str_("a"), (1, "a"), (1, "a")]
    assert [len(user) for user in UserDataset(list(range(8)), ids, 9)] == [4, 2, 2]


class Shifted(nn.Module):
    """A decoder with an encoder's interface, which shifts labels along the second dimension, as BART does."""

    class Config:
        is_encoder_decoder, num_labels = True, 2

    def __init__(self):
        super().__init__()
        self.config, self.seen = self.Config(), []
        self.tokens, self.head = nn.Embedding(20, 4), nn.Linear(4, 20)

    def prepare_decoder_input_ids_from_labels(self, labels):
        shifted = labels.new_zeros(labels.shape)
        shifted[:, 1:] = labels[:, :-1].clamp(min=0)
        return shifted

    def forward(self, input_ids=None, attention_mask=None, decoder_input_ids=None, labels=None):
        self.seen.append(decoder_input_ids.clone())
        return SimpleNamespace(logits=self.head(self.tokens(decoder_input_ids)))


def test_labels_are_shifted_within_a_sequence(tmp_path):
    users, model = users_of("gpt2"), Shifted()
    args = TrainingArguments(str(tmp_path / "out"), per_device_train_batch_size=2, max_steps=1, **QUIET)
    options = {"plan": plan_for(examples=len(users), unit="user"), "rows_per_user": LIMIT, "loss": TokenLoss()}
    with PrivateTrainer(
        model, args, train_dataset=users, run_directory=tmp_path / "run", data_collator=stacked, **options
    ) as found:
        found.train()
    rows = model.seen[-1]
    assert (rows[:, 0] == 0).all()
    sentences = {tuple(labels[:-1].clamp(min=0).tolist()) for labels in Sentences("gpt2", examples=35).labels}
    assert {tuple(row.tolist()) for row in rows[:, 1:]} <= sentences | {(0,) * (rows.shape[1] - 1)}


def test_users_are_collated_in_order_and_padded():
    batch = collated()([[{"labels": torch.tensor(k)} for k in user] for user in ([1, 2, 3], [4], [5, 6])])
    assert batch["labels"].tolist() == [[1, 2, 3], [4, -100, -100], [5, 6, -100]]
    assert flatten_users(batch)["labels"].tolist() == [1, 2, 3, 4, -100, -100, 5, 6, -100]


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="one user for each example"):
        UserDataset([1, 2], ["a"], 1)
    with pytest.raises(ap.InvalidArgument, match="between 1 and 3 examples"):
        collated()([[{"labels": torch.tensor(1)}] * 4])
    with pytest.raises(ap.InvalidArgument, match="must be integers"):
        collated()([[{"labels": torch.tensor(0.5)}]])
    with pytest.raises(ap.InvalidArgument, match="`reduction`"):
        UserLoss(lambda output, labels: 0.0, 2)
    model, users = model_of("bert"), users_of("bert")
    optimizer, plan = torch.optim.SGD(model.parameters(), lr=0.1), plan_for(examples=len(users), unit="user")
    for options, words in (
        ({"rows_per_example": 0}, "positive integer"),
        ({"rows_per_example": 2, "grad_sample_mode": "ew"}, "cannot be used with"),
        ({"rows_per_example": 2, "batch_first": False}, "cannot be used with"),
    ):
        engine = antiphase.torch.PrivacyEngine(tmp_path / "run", secret=SECRET)
        with pytest.raises(ap.InvalidArgument, match=words):
            engine.make_private(model, optimizer, users, plan, **options)


def test_the_unit_of_the_plan_and_the_rows_must_fit_the_data_set(tmp_path):
    users, args = users_of("bert"), TrainingArguments(str(tmp_path / "out"), **QUIET)
    plan, examples_plan = (plan_for(examples=len(users), unit=unit) for unit in ("user", "example"))

    def trainer(plan, rows, dataset=users):
        PrivateTrainer(
            model_of("bert"), args, plan=plan, run_directory=tmp_path / "run", rows_per_user=rows, train_dataset=dataset
        )

    for given, words in (
        ((plan, 2, Sentences("bert", len(users))), "must be a UserDataset"),
        ((plan, None), "rows_per_user=3"),
        ((plan, 2), "less than the limit"),
        ((examples_plan, LIMIT), r"unit='user'"),
    ):
        with pytest.raises(ap.InvalidArgument, match=words):
            trainer(*given)
    model = model_of("bert")
    optimizer, engine = torch.optim.SGD(model.parameters(), lr=0.1), antiphase.torch.PrivacyEngine(tmp_path / "run")
    with pytest.raises(ap.InvalidArgument, match=r"unit='user'"):
        engine.make_private(model, optimizer, users, examples_plan, rows_per_example=LIMIT)
    budget = {"epsilon": 8.0, "delta": 1e-4, "epochs": 1, "batch_size": 4, "families": ["identity"]}
    with pytest.raises(ap.InvalidArgument, match=r"unit='user'"):
        engine.make_private_with_epsilon(model, optimizer, users, problem={"unit": "example"}, **budget)
    assert not (tmp_path / "run").exists()
    with engine:
        engine.make_private_with_epsilon(model, optimizer, users, rows_per_example=LIMIT, **budget)
        assert engine.plan.problem.unit == "user"


def test_rows_that_are_not_a_multiple_are_refused(tmp_path):
    module = nn.Linear(4, 3)
    engine = antiphase.torch.PrivacyEngine(tmp_path / "run", secret=SECRET)
    dataset = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.zeros(8, 1, dtype=torch.long))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with engine:
        model, optimizer, _ = engine.make_private(module, optimizer, dataset, plan_for(examples=8), rows_per_example=2)
        with pytest.raises(ap.Refused, match="not a multiple"):
            model(torch.randn(3, 4)).sum().backward()
        model.zero_grad()


def test_token_losses_of_users():
    labels = torch.randint(0, 5, (2, 3, 4))
    logits = torch.randn(6, 4, 5)
    found = UserLoss(TokenLoss(), 3, reduction="sum")(logits, labels)
    torch.testing.assert_close(found, TokenLoss("sum")(logits, labels.flatten(0, 1)))
