"""Plans, and what is trained with them, for the files that every later version must read and resume bit for bit."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

import antiphase as ap
from antiphase.strategies import (
    BLT,
    Banded,
    BandedInverse,
    Dense,
    Fourier,
    Identity,
    Stamped,
    Strategy,
    Toeplitz,
    Tree,
)

STEPS, STOP, EXAMPLES = 12, 5, 40
LEAVES = {"kernel": (3, 2), "bias": (5,)}
LOWER = np.tril(np.random.default_rng(1).random((STEPS, STEPS)) * 0.3, -1) + np.eye(STEPS)

STRATEGIES: dict[str, Strategy] = {
    "identity": Identity(STEPS),
    "toeplitz": Toeplitz([1.0, 0.5, 0.25], STEPS),
    "toeplitz-normalized": Toeplitz([1.0, 0.5, 0.25], STEPS, column_normalized=True),
    "banded": Banded(0.3 * Toeplitz([1.0, 0.5, 0.25], STEPS).columns()),
    "dense": Dense(5.0 * LOWER),
    "blt": BLT([0.9, 0.5], [0.1, 0.2], STEPS),
    "banded-inverse": BandedInverse([1.0, -0.5, -0.125], STEPS),
    "tree": Tree(STEPS),
    "tree-full": Tree(STEPS, decoder="full"),
    "fourier": Fourier(STEPS),
    "stamped": Stamped(Toeplitz([2.0, 1.0], 4), 3),
}
PARTICIPATIONS: dict[str, ap.Participation] = {
    "single": ap.SingleParticipation(),
    "every-step": ap.EveryStep(),
    "fixed-epochs": ap.FixedEpochs(3, 4),
    "shuffled-epochs": ap.ShuffledEpochs(3, 4),
    "min-separation": ap.MinSeparation(4),
    "poisson": ap.Poisson(0.25),
    "cyclic-poisson": ap.CyclicPoisson(4, 0.5),
    "fixed-size": ap.FixedSize(4, 5),
    "balls-in-bins": ap.BallsInBins(3, 4),
    "poisson-min-separation": ap.PoissonMinSeparation(4, 0.25),
}


def plan_for(strategy: Strategy, participation: ap.Participation | None = None) -> ap.Plan:
    """A plan made by hand, with a budget that its guarantee meets."""
    participation = participation or ap.MinSeparation(4)
    sized = isinstance(participation, ap.FixedSize)
    adjacency, examples = ("replace", EXAMPLES) if sized else ("zero-out", None)
    noise_std = 3.0 * float(np.abs(strategy.encoder()).max())
    mechanism = ap.Mechanism(strategy, participation, noise_std, adjacency, examples)
    budget = ap.Budget(40.0, 1e-6)
    problem = ap.Problem(
        steps=STEPS,
        budget=budget,
        examples=EXAMPLES,
        participation=participation,
        adjacency=adjacency,
        clip_norm=0.5,
        objective="rms",  # the default of 0.1.0, which fingerprints contain
    )
    return ap.Plan(problem, mechanism, ap.epsilon(mechanism, budget.delta), error=1.0)


def take_steps(run: ap.Run, stop: int) -> list[str]:
    """Commit the steps up to `stop`; SHA-256 of batch and noise of each."""
    seen = []
    for step in range(run.committed, stop):
        code = hashlib.sha256()
        if run._header.examples is not None:
            indices, mask = run.batch(step)
            code.update(np.ascontiguousarray(indices[mask], "<i8").tobytes())
        noise = run._unit_noise(step)
        for array in noise:
            code.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
        run.commit(step, ap.digest(noise))
        seen.append(code.hexdigest())
    return seen


def sha256(arrays: list[np.ndarray]) -> str:
    """SHA-256 of the bytes of arrays."""
    code = hashlib.sha256()
    for array in arrays:
        code.update(np.ascontiguousarray(array).tobytes())
    return code.hexdigest()


def make_private(directory: Path) -> None:
    """Give private files their modes again, which version control does not keep."""
    for path in directory.rglob("*"):
        private = "private" in path.relative_to(directory).parts
        path.chmod((0o700 if private else 0o755) if path.is_dir() else (0o600 if private else 0o644))
