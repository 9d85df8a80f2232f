"""Models whose computation depends on the longest example of a batch are refused, or their long examples are."""

import pytest
import torch
from torch.utils.data import TensorDataset
from transformers import BigBirdConfig, BigBirdForSequenceClassification, LlamaConfig, LlamaForCausalLM

import antiphase as ap
from antiphase.torch.losses import CausalLMLoss
from tests.torch.training import HOOKS, plan_for, private

pytestmark = pytest.mark.filterwarnings(HOOKS)
LIMIT = 8
ROPE = {
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 2,
        "long_factor": [8.0] * 2,
        "original_max_position_embeddings": LIMIT,
    },
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "default": {"rope_type": "default", "rope_theta": 1e4},
}


def llama(kind):
    longest = 32 if kind == "longrope" else LIMIT
    sizes = {"vocab_size": 19, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, intermediate_size=12, max_position_embeddings=longest, rope_parameters=ROPE[kind])
    return LlamaForCausalLM(config)


def step(module, optimizer, criterion, loader):
    (tokens,) = next(iter(loader))
    optimizer.zero_grad()
    criterion(module(tokens), tokens).backward()
    optimizer.step()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize(("kind", "refuses"), [("longrope", True), ("dynamic", True), ("default", False)])
def test_rotary_embeddings_that_depend_on_the_longest_example(tmp_path, kind, refuses, mode):
    for length in (LIMIT, LIMIT + 1):
        tokens = TensorDataset(torch.randint(0, 19, (40, length)))
        options = {"dataset": tokens, "criterion": CausalLMLoss(), "grad_sample_mode": mode}
        engine, *made = private(tmp_path / str(length), plan_for(), llama(kind), **options)
        made[2] = made[2] if mode == "ghost" else CausalLMLoss()
        with engine:
            if refuses and length > LIMIT:
                with pytest.raises(ap.Refused, match=f"truncate examples to {LIMIT} tokens"):
                    step(*made)
            else:
                step(*made)
                assert engine.step == 1


def test_a_long_evaluation_does_not_change_later_steps(tmp_path):
    """It grows the frequencies of "dynamic", and only an input shorter than the original length resets them."""
    tokens = TensorDataset(torch.randint(0, 19, (40, LIMIT)))
    engine, module, optimizer, _, loader = private(tmp_path, plan_for(), llama("dynamic"), dataset=tokens)
    with engine:
        step(module, optimizer, CausalLMLoss(), loader)
        with torch.no_grad():
            module.eval()(torch.randint(0, 19, (2, 3 * LIMIT)))
        module.train()
        with pytest.raises(ap.Refused, match=f"truncate examples to {LIMIT - 1} tokens"):
            step(module, optimizer, CausalLMLoss(), loader)


def test_attention_chosen_by_the_longest_example_is_refused_by_name(tmp_path):
    sizes = {"vocab_size": 19, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BigBirdForSequenceClassification(
        BigBirdConfig(**sizes, intermediate_size=12, attention_type="block_sparse")
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = ap.torch.PrivacyEngine(tmp_path)
    with pytest.raises(ap.InvalidArgument, match="set_attention_type"):
        engine.make_private(model, optimizer, TensorDataset(torch.zeros(40, 4, dtype=torch.long)), plan_for())
