"""Accuracy of federated training with user-level privacy: server momentum over clipped user updates.

There are 240 rounds, each with about 100 of 4,000 users. The data of the users differ strongly. Each user takes two
local steps. The server adds noise to the sum of the clipped updates and applies momentum. In the rows without
amplification, a user takes part at most six times, with at least 40 rounds from one participation to the next. The
command takes the options of `benchmarks.training`. Results are stored in training_federated.jsonl.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import antiphase as ap
from benchmarks._federated import PARAMETERS, Users, accuracy, flat_params, make_users
from benchmarks._measure import sized
from benchmarks._student import teacher
from benchmarks._training_cells import Task, draw_batches, noise_of
from benchmarks._training_command import results_file, run_command
from benchmarks._training_loop import Settings, train
from benchmarks._training_rows import fixed_rows

USERS, COHORT, EPOCHS, ROUNDS = sized((4_000, 100, 6, 240), (120, 20, 2, 12))
PER_EPOCH = ROUNDS // EPOCHS
CLIP, BETA = 0.5, 0.9


@cache
def data() -> tuple[Users, Any]:
    """Return the users, and the test set as (images, labels)."""
    (images, labels), testing = teacher.make_data(sized(50_000, 1_000))
    return Users(*make_users(images, labels, USERS), CLIP), testing


def runs(mechanism: ap.Mechanism, seeds: tuple[int, ...], rates: tuple[float, ...]) -> dict[str, Any]:
    """Return the accuracies after the last round. All learning rates use the same noise and users for a seed."""
    users, testing = data()
    start = np.stack([flat_params(seed) for seed in seeds])
    cohorts = [draw_batches(mechanism.participation, USERS, ROUNDS, seed) for seed in seeds]
    settings = Settings(CLIP, COHORT, BETA, np.ones(ROUNDS), rates)
    theta = train(users, start, cohorts, noise_of(mechanism, seeds, PARAMETERS), settings)
    return {"accuracy": np.array([[accuracy(one, *testing) for one in row] for row in theta])}


FIRST_RATES = {1.0: 0.25, 2.0: 0.5, 4.0: 1.0, 8.0: 1.0}
TASK = Task(
    name="federated",
    steps=ROUNDS,
    per_epoch=PER_EPOCH,
    examples=USERS,
    batch_size=COHORT,
    workload=ap.Momentum(BETA),
    first_rates=sized(FIRST_RATES, {8.0: 1.0}),
    runs=runs,
    results=results_file("training_federated.jsonl"),
    unamplified=ap.MinSeparation(PER_EPOCH, EPOCHS),
    clip_norm=CLIP,
)
ROWS = fixed_rows(PER_EPOCH)


def main() -> None:
    run_command([TASK], ROWS)


if __name__ == "__main__":
    main()
