"""With Hugging Face models, the noise is added to the sum of the clipped gradients of single examples."""

import copy
from functools import cache

import pytest
import torch
from accelerate import Accelerator
from transformers import TrainingArguments

import antiphase.torch
from antiphase.torch.huggingface import PrivateTrainer
from tests.torch.training import HOOKS, PEFT, SECRET, plan_for
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

pytestmark = [pytest.mark.filterwarnings(HOOKS, PEFT), pytest.mark.usefixtures("same_run_id")]
BATCH = 10
CLIP_NORMS = {("gpt2", True): 0.01}  # gradients of this adapter are small


planned = cache(lambda clip_norm: plan_for(batch_size=BATCH, clip_norm=clip_norm))


@cache
def by_hand(kind, lora, clip_norm, indices):
    """Return the expected clipped sum, which is the same for all modes and loops."""
    dataset = Sentences(kind)
    return clipped_sum_by_hand(model_of(kind, lora=lora), [[dataset[i]] for i in indices], clip_norm)


def own_loop(directory, kind, model, plan, mode, accelerator=None, prepared=None):
    """Take the first step in a plain training loop, and return a `Recorder` with its gradient.

    Accelerate's `prepare` may be called before or after `make_private`.
    """
    optimizer = torch.optim.SGD(trained(model), lr=0.1)
    if prepared == "before":
        model, optimizer = accelerator.prepare(model, optimizer)
    criterion = criterion_of(kind)
    with antiphase.torch.PrivacyEngine(directory, secret=SECRET) as engine:
        made = engine.make_private(model, optimizer, Sentences(kind), plan, criterion=criterion, grad_sample_mode=mode)
        private, optimizer, loader = made[0], made[1], made[-1]
        criterion = made[2] if mode == "ghost" else criterion
        recorder = Recorder(optimizer, model)
        if prepared == "after":
            private, optimizer, loader = accelerator.prepare(private, optimizer, loader)
        backward = (lambda loss: loss.backward()) if accelerator is None else accelerator.backward
        private.train()
        for batch in loader:
            labels = batch.pop("labels")
            output = private(**batch)
            optimizer.zero_grad()
            backward(criterion(output if kind == "gpt2" else output.logits, labels))
            optimizer.step()
            if engine.step == 2:  # the second batch shows that reading on works
                break
        return recorder


def trainer(directory, kind, model, plan, mode):
    args = TrainingArguments(str(directory / "out"), per_device_train_batch_size=3, max_steps=1, **QUIET)
    options = {"grad_sample_mode": mode, "train_dataset": Sentences(kind), "secret": SECRET}
    with PrivateTrainer(model, args, plan=plan, run_directory=directory / "run", **options) as found:
        found.get_train_dataloader()
        recorder = Recorder(found._private_optimizer, model)
        found.train()
    return recorder


def update(loop, directory, kind, model, plan, mode):
    if loop == "trainer":
        return trainer(directory, kind, model, plan, mode)
    if loop == "own":
        return own_loop(directory / "run", kind, model, plan, mode)
    return own_loop(directory / "run", kind, model, plan, mode, Accelerator(cpu=True), loop)


@pytest.mark.parametrize("loop", ["own", "trainer", "before", "after"])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_the_noisy_update_minus_the_noise(tmp_path, kind, lora, mode, loop):
    clip_norm = CLIP_NORMS.get((kind, lora), 0.5)
    plan = planned(clip_norm)
    model = model_of(kind, lora=lora)  # the input and output embeddings of GPT-2 are tied
    initial = copy.deepcopy(model)
    recorder = update(loop, tmp_path, kind, model, plan, mode)
    noise, indices = noise_of_first_step(tmp_path / "noise", initial, plan, recorder.names)
    found = recorder.steps[0] * BATCH - noise
    wanted = by_hand(kind, lora, clip_norm, tuple(indices))
    assert (found - wanted).norm() < 1e-5 * clip_norm * len(indices)
