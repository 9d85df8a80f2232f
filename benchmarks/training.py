"""Accuracy of private training by mechanism and epsilon, on 50,000 pictures labelled by a fixed teacher.

20 epochs of 100 steps of 500 examples, a network of 4,810 parameters, heavy-ball SGD with a cool-down. The secret of
the noise is known: this is a study of accuracy, and nothing here is kept private.

    python -m benchmarks.training --rows dp-sgd,banded-rms --epsilons 4,8 --seeds 10   # measure these cells
    python -m benchmarks.training --seeds 0                                            # tables of what is known

Results are kept line by line in training.jsonl beside this file. What is there is not computed again, so a run can be
interrupted, and more seeds can be added later. The picture is drawn again each time.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import antiphase as ap
from benchmarks._measure import sized
from benchmarks._spectrum import binned, gauss_newton_product, lanczos_spectrum
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
    """With the pictures for training, and with those for testing."""
    (images, labels), (test_images, test_labels) = teacher.make_data(EXAMPLES)
    return Student(images, labels, CLIP), Student(test_images, test_labels, CLIP)


def runs(mechanism: ap.Mechanism, seeds: tuple[int, ...], rates: tuple[float, ...]) -> dict[str, Any]:
    """Accuracies of the last step; noise and batches of a seed are the same at every rate."""
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
    """The curvatures of an untrained student on public pictures without labels."""
    pictures = teacher.pictures(sized(1_000, 20), np.random.default_rng(99))
    product = gauss_newton_product(flat_params(1_000), pictures, clip_norm)
    nodes, weights = lanczos_spectrum(product, PARAMETERS, *sized((4, 40), (1, 8)), seed=0)
    return Mixture.of(*binned(nodes, weights, low=1e-6))


def add_curvature_rows() -> None:
    """NoiseCurve (Gu et al. 2025) as far as it is known: banded noise for curvatures estimated from public data."""
    kinds = {"noisecurve": ("", np.inf), "noisecurve-clipped": (", clipping counted", CLIP)}
    for name, (words, clip_norm) in kinds.items():
        make = partial(last_for_rate, partial(public_spectrum, clip_norm))
        ROWS[name] = Row(f"Toeplitz, cyclic Poisson, public curvature{words}", make, "amplified")


add_curvature_rows()


def main() -> None:
    run_command([TASK], ROWS, PICTURE)


if __name__ == "__main__":
    main()
