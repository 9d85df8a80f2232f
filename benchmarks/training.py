"""Accuracy of private training by mechanism and epsilon, on 50,000 images labelled by a fixed teacher network.

Training has 20 epochs of 100 steps, with 500 examples per step. The network has 4,810 parameters. The optimizer is SGD
with heavy-ball momentum and a learning rate cooldown. This is a study of accuracy only: the secret of the noise is
known, so the results are not private.

    python -m benchmarks.training --rows dp-sgd,banded-rms --epsilons 4,8 --seeds 10   # measure these cells
    python -m benchmarks.training --seeds 0                                            # only print tables

Results are stored line by line in training.jsonl next to this file. Stored results are not computed again, so the
command can be interrupted, and more seeds can be added later. The chart is drawn again each time.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import antiphase as ap
from antiphase._spectrum import lanczos_quadrature
from benchmarks._measure import sized
from benchmarks._spectrum import binned, gauss_newton_product
from benchmarks._student import flat_params, teacher
from benchmarks._student_numpy import PARAMETERS, Student
from benchmarks._training_cells import Row, Task, draw_batches, noise_of
from benchmarks._training_command import results_file, run_command
from benchmarks._training_loop import Settings, train
from benchmarks._training_rows import Mixture, fixed_rows, last_for_rate

EXAMPLES, BATCH, EPOCHS, STEPS = sized((50_000, 500, 20, 2000), (120, 20, 2, 12))
PER_EPOCH = STEPS // EPOCHS
CLIP, BETA = 1.0, 0.9
SCHEDULE = ap.schedules.linear(STEPS, warmup=0.0, cooldown=0.25, floor=0.05)
FIRST_RATES = {0.5: 0.0625, 1.0: 0.125, 2.0: 0.25, 4.0: 1.0, 8.0: 2.0}
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "training.svg"


@cache
def students() -> tuple[Student, Student]:
    """Return the student with the training set, and the student with the test set."""
    (images, labels), (test_images, test_labels) = teacher.make_data(EXAMPLES)
    return Student(images, labels, CLIP), Student(test_images, test_labels, CLIP)


def runs(mechanism: ap.Mechanism, seeds: tuple[int, ...], rates: tuple[float, ...]) -> dict[str, Any]:
    """Return the accuracies after the last step. All learning rates use the same noise and batches for a seed."""
    training, testing = students()
    start = np.stack([flat_params(seed) for seed in seeds])
    batches = [draw_batches(mechanism.participation, EXAMPLES, STEPS, seed) for seed in seeds]
    settings = Settings(CLIP, BATCH, BETA, SCHEDULE, rates)
    theta = train(training, start, batches, noise_of(mechanism, seeds, PARAMETERS), settings)
    return {"accuracy": np.array([[testing.accuracy(one) for one in row] for row in theta])}


TASK = Task(
    name="images",
    steps=STEPS,
    per_epoch=PER_EPOCH,
    examples=EXAMPLES,
    batch_size=BATCH,
    workload=ap.Momentum(BETA, SCHEDULE),
    first_rates=sized(FIRST_RATES, {8.0: 1.0}),
    runs=runs,
    results=results_file("training.jsonl"),
)
ROWS = fixed_rows(PER_EPOCH)


@cache
def public_spectrum(clip_norm: float) -> Mixture:
    """Return the curvatures of an untrained student network, estimated on public images without labels."""
    pictures = teacher.pictures(sized(1_000, 20), np.random.default_rng(99))
    product = gauss_newton_product(flat_params(1_000), pictures, clip_norm)
    probes, iterations = sized((4, 40), (1, 8))
    rng = np.random.default_rng(0)
    nodes, weights = lanczos_quadrature(product, PARAMETERS, iterations=iterations, probes=probes, rng=rng)
    return Mixture.of(*binned(nodes, weights, low=1e-6))


def add_curvature_rows() -> None:
    """Add rows that follow NoiseCurve (Gu et al. 2025), as far as its details are published.

    These rows use banded Toeplitz strategies for curvatures that are estimated from public data.
    """
    kinds = {"noisecurve": ("", np.inf), "noisecurve-clipped": (", clipping counted", CLIP)}
    for name, (words, clip_norm) in kinds.items():
        make = partial(last_for_rate, partial(public_spectrum, clip_norm))
        ROWS[name] = Row(f"Toeplitz, cyclic Poisson, public curvature{words}", make, "amplified")


add_curvature_rows()


def main() -> None:
    run_command([TASK], ROWS, PICTURE)


if __name__ == "__main__":
    main()
