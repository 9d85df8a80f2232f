"""Accuracy of a private language model: an LSTM predicts the next character of the Python reference manual.

Training has 3 epochs of 100 steps, with 120 short sequences of characters per step. The model has 6,272 parameters. The
optimizer is heavy-ball SGD in the first task, and Adam in the second. Both receive the clipped gradients with noise.
Accuracy is the fraction of the characters of a test text that are predicted correctly. The command takes the options of
`benchmarks.training`. Results are stored in training_language.jsonl and training_language_adam.jsonl.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Literal

import numpy as np

import antiphase as ap
from benchmarks._language import PARAMETERS, LanguageModel, flat_params, make_data
from benchmarks._measure import sized
from benchmarks._training_cells import Task, draw_batches, noise_of
from benchmarks._training_command import results_file, run_command
from benchmarks._training_loop import Settings, train
from benchmarks._training_rows import fixed_rows

EXAMPLES, TESTS, BATCH, EPOCHS, STEPS = sized((12_000, 4_000, 120, 3, 300), (120, 40, 20, 2, 12))
PER_EPOCH = STEPS // EPOCHS
CLIP, BETA = 0.5, 0.9
SCHEDULE = ap.schedules.linear(STEPS, warmup=0.0, cooldown=0.25, floor=0.05)


@cache
def models() -> tuple[LanguageModel, LanguageModel]:
    """Return the model with the training text, and the model with the test text."""
    training, testing = make_data(EXAMPLES, TESTS)
    return LanguageModel(training, CLIP), LanguageModel(testing, CLIP)


def runs(
    optimizer: Literal["momentum", "adam"],
    mechanism: ap.Mechanism,
    seeds: tuple[int, ...],
    rates: tuple[float, ...],
) -> dict[str, Any]:
    """Return accuracies and losses after the last step. Noise and batches of a seed are the same for all rates."""
    training, testing = models()
    start = np.stack([flat_params(seed) for seed in seeds])
    batches = [draw_batches(mechanism.participation, EXAMPLES, STEPS, seed) for seed in seeds]
    settings = Settings(CLIP, BATCH, BETA, SCHEDULE, rates, optimizer)
    theta = train(training, start, batches, noise_of(mechanism, seeds, PARAMETERS), settings)
    found = np.array([[testing.evaluate(one) for one in row] for row in theta])
    return {"accuracy": found[..., 0], "loss": found[..., 1]}


def task(name: str, optimizer: Literal["momentum", "adam"], first_rates: dict[float, float], results: str) -> Task:
    return Task(
        name=name,
        steps=STEPS,
        per_epoch=PER_EPOCH,
        examples=EXAMPLES,
        batch_size=BATCH,
        workload=ap.Momentum(BETA, SCHEDULE),
        first_rates=sized(first_rates, {8.0: first_rates[8.0]}),
        runs=partial(runs, optimizer),
        results=results_file(results),
        clip_norm=CLIP,
    )


TASKS = [
    task("language", "momentum", {1.0: 2.0, 2.0: 2.0, 4.0: 4.0, 8.0: 4.0}, "training_language.jsonl"),
    task("language-adam", "adam", dict.fromkeys((1.0, 2.0, 4.0, 8.0), 0.0625), "training_language_adam.jsonl"),
]
ROWS = fixed_rows(PER_EPOCH)


def main() -> None:
    run_command(TASKS, ROWS)


if __name__ == "__main__":
    main()
