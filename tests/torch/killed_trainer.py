"""Trains with PrivateTrainer in this process. If a step is given, the process is killed within that step."""

import logging
import os
import signal
import sys
from pathlib import Path

import torch
from transformers import TrainerCallback, TrainingArguments

import antiphase._run.opening
from antiphase.torch.huggingface import PrivateTrainer
from tests.torch.training import SECRET, plan_for
from tests.torch.transformer_models import Sentences, model_of, trained

logging.getLogger("transformers").setLevel(logging.ERROR)


class Kill(TrainerCallback):
    """Kills the process right after the optimizer's step. The ledger holds the step, but no checkpoint does yet."""

    def __init__(self, step):
        self.step = step

    def on_optimizer_step(self, args, state, control, **_):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(directory, mode, kill=None):
    torch.set_num_threads(1)
    antiphase._run.opening.fresh_run_id = lambda: "0" * 32
    directory = Path(directory)
    args = TrainingArguments(
        str(directory / "out"),
        per_device_train_batch_size=4,
        save_steps=3,
        learning_rate=0.01,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=2,
    )
    model = model_of("gpt2", lora=True, dropout=0.2)
    callbacks = [] if kill is None else [Kill(int(kill))]
    options = {"grad_sample_mode": mode, "train_dataset": Sentences("gpt2"), "callbacks": callbacks, "secret": SECRET}
    with PrivateTrainer(model, args, plan=plan_for(), run_directory=directory / "run", **options) as trainer:
        trainer.train(resume_from_checkpoint=True)
        report = trainer.report()
        assert (report.steps_run, report.rewinds) == (12, 0), report
    parameters = torch.cat([p.detach().reshape(-1) for p in trained(model)])
    torch.save(parameters, directory / "parameters.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
