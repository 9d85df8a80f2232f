"""Canaries in the library's own noise and batches: simulated runs of a mechanism, and runs with a ledger."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase import _check
from antiphase._accounting import Mechanism
from antiphase._check import Array
from antiphase._noise import Leaf, NoiseStream
from antiphase._participation import Deterministic, Participation
from antiphase._plan import Plan
from antiphase._record import from_json
from antiphase._run import HOST, Run, RunRecord
from antiphase._secret import Secret
from antiphase.audit._canary import canary_signs, worst_pattern
from antiphase.audit._release import Flags, Release, joined

Indices = NDArray[np.int64]
LARGEST_PIECE = 20_000_000  # noise values of one simulated run that are held in memory
QUIET = 256


def fair_coins(count: int, rng: np.random.Generator, *, balanced: bool = False) -> Flags:
    """Return a coin for each canary, fair and independent; or, if `balanced`, exactly half of them heads."""
    if balanced:
        return rng.permutation(np.arange(count) % 2 == 0)
    return rng.random(count) < 0.5


def canary_places(canaries: int, examples: int, secret: Secret) -> Indices:
    """Return the examples that are canaries, spread at random: programs may treat the first ones differently."""
    return coin_generator(secret, "places").permutation(examples)[:canaries]


def coin_generator(secret: Secret, *what: str | int) -> np.random.Generator:
    """Return a random generator for coins, derived from the secret and from nothing that the program sees."""
    return np.random.default_rng(int.from_bytes(secret.derive("audit coins", *what), "big"))


def simulate(
    mechanism: Mechanism,
    *,
    canaries: int,
    runs: int = 1,
    quiet: int = QUIET,
    secret: Secret | None = None,
) -> Release:
    """Return what `runs` runs of a mechanism release, each with `canaries` canaries, from the library's own noise.

    Noise comes from `NoiseStream`, and random batches from the mechanism's sampler. Canaries of deterministic
    participations take the worst pattern.

    Args:
        mechanism: mechanism to simulate.
        canaries: number of canaries in each run.
        runs: number of runs, with separate noise and batches.
        quiet: number of directions in which nobody contributes.
        secret: secret of the noise, batches and coins; None for a fresh one.
    """
    owner = "simulate"
    canaries = _check.positive_integer(owner, "canaries", canaries)
    runs = _check.positive_integer(owner, "runs", runs)
    secret = Secret.generate() if secret is None else secret
    start = time.perf_counter()
    n = mechanism.strategy.steps
    most = max(1, min(LARGEST_PIECE // n, mechanism.examples or canaries))
    pieces = [min(most, canaries - done) for done in range(0, canaries, most)]
    quiet_share = max(1, quiet // (len(pieces) * runs))
    found = [
        _simulated(mechanism, size, quiet_share, secret, f"audit-{run}-{i}")
        for run in range(runs)
        for i, size in enumerate(pieces)
    ]
    whole = joined(found)
    return Release(
        whole.projections,
        whole.present,
        whole.taking_part,
        whole.quiet,
        whole.signs,
        source="simulation with NoiseStream",
        seconds=time.perf_counter() - start,
    )


def _simulated(mechanism: Mechanism, canaries: int, quiet: int, secret: Secret, run_id: str) -> Release:
    strategy, given = mechanism.strategy, mechanism.participation
    n, rng = strategy.steps, coin_generator(secret, run_id)
    if isinstance(given, Deterministic):
        pattern = worst_pattern(strategy, given)
        part, signs = np.repeat((pattern != 0.0)[:, None], canaries, axis=1), np.where(pattern == 0.0, 1.0, pattern)
    else:
        part, signs = drawn_patterns(mechanism, canaries, secret.child(run_id)), canary_signs(strategy, given)
    present = fair_coins(canaries, rng)
    stream = NoiseStream(mechanism, {"canaries": Leaf((canaries + quiet,))}, secret, run_id, dtype="float32")
    noise = np.empty((n, canaries + quiet))
    for t in range(n):
        noise[t] = stream.next()[0]
    sizes = present.astype(np.float64) if mechanism.adjacency != "replace" else np.where(present, 1.0, -1.0)
    projections = noise[:, :canaries] + part * signs[:, None] * sizes[None, :]
    return Release(projections, present, part, noise[:, canaries:], signs)


def drawn_patterns(mechanism: Mechanism, canaries: int, secret: Secret) -> Flags:
    """Return the steps in which the mechanism's own sampler draws each canary, shape (steps, canaries)."""
    n = mechanism.strategy.steps
    examples = max(canaries, mechanism.examples or 0)
    given: Participation = mechanism.participation
    sampler = given.sampler(examples, n, secret)
    part = np.zeros((n, examples), dtype=np.bool_)
    for t in range(n):
        indices, mask = sampler.batch(t)
        part[t, indices[mask]] = True
    return part[:, :canaries]


def release_of_run(record: RunRecord, entries: int = 4096) -> Release | None:
    """Return what a stored run would have released to canaries, from its own noise and batches; None if unknown.

    The noise is made again from the run's secret, for up to `entries` entries of its leaves. Half of them are canaries,
    and the others are quiet. Noise that an integration made on a device cannot be made again here.

    Args:
        record: the run.
        entries: largest number of entries.
    """
    start = time.perf_counter()
    mechanism, plan = record.plan.mechanism, record.plan
    if record.history.source != HOST:
        return None
    leaves = _first_entries({name: from_json(leaf) for name, leaf in record.header.leaves}, entries)
    stream = NoiseStream(plan, leaves, record.secret, record.header.run_id, dtype=record.header.dtype)
    noise = np.stack([np.concatenate([part.ravel() for part in stream.next()]) for _ in range(plan.steps)])
    examples = record.header.examples
    size = noise.shape[1] // 2
    if examples is None:
        pattern = worst_pattern(mechanism.strategy, mechanism.participation.worst_case)
        part = np.repeat((pattern != 0.0)[:, None], size, axis=1)
    else:
        size, sampler = min(size, examples), record.sampler()
        part = np.zeros((plan.steps, examples), dtype=np.bool_)
        for t in range(plan.steps):
            indices, mask = sampler.batch(t)
            part[t, indices[mask]] = True
        part = part[:, :size]
    signs = canary_signs(mechanism.strategy, mechanism.participation)
    present = fair_coins(size, coin_generator(record.secret, "run", record.header.run_id))
    sizes = present.astype(np.float64) if mechanism.adjacency != "replace" else np.where(present, 1.0, -1.0)
    return Release(
        noise[:, :size] + part * signs[:, None] * sizes,
        present,
        part,
        noise[:, size:],
        signs,
        source=f"noise and batches of run {record.header.run_id[:8]}",
        seconds=time.perf_counter() - start,
    )


def _first_entries(leaves: dict[str, Leaf], most: int) -> dict[str, Leaf]:
    """Return the first rows of each leaf, about `most` entries in all. Noise does not depend on what else is made."""
    share, found = max(1, most // max(len(leaves), 1)), {}
    for name, leaf in leaves.items():
        shape = leaf.global_shape
        box = []
        left = share
        for size in reversed(shape):
            taken = max(1, min(size, left))
            box.append((0, taken))
            left //= taken
        found[name] = Leaf(shape, tuple(reversed(box))) if shape and 0 not in shape else leaf
    return found


Step = Callable[[Run, int, Array], Array]


def numpy_step(run: Run, step: int, total: Array) -> Array:
    """Return the noisy sum of a step, as a loop in NumPy computes it: the sum plus the run's noise."""
    return total + run.gradient_noise(step)[0]


def drive_numpy(
    plan: Plan,
    directory: str | Path,
    *,
    canaries: int,
    quiet: int = QUIET,
    examples: int | None = None,
    secret: Secret | None = None,
    step: Step = numpy_step,
    gradients: Callable[[Array], Array] | None = None,
) -> Release:
    """Drive a loop in NumPy with canary examples, through a run with its batches, noise and ledger.

    The data are one-hot vectors. The gradient of an example is its vector times 1000, clipped to the plan's norm. Half
    way, the run is closed and opened again, and its last step is replayed.

    Args:
        plan: plan to run.
        directory: directory of the run; must be empty.
        canaries: number of canary examples.
        quiet: number of directions without contributions.
        examples: number of examples, canaries included; by default, that of the plan's problem, or the canaries alone.
        secret: secret of the run; None for a fresh one.
        step: function (run, step, sum of clipped gradients) -> noisy sum: the part of the loop that is audited.
        gradients: function that clips: (rows of gradients) -> their clipped sum. By default, each row is clipped.
    """
    start = time.perf_counter()
    secret = Secret.generate() if secret is None else secret
    total_examples = examples or plan.problem.examples or canaries
    _check_canaries(canaries, total_examples)
    clip = plan.problem.clip_norm
    signs = canary_signs(plan.mechanism.strategy, plan.mechanism.participation)
    present = fair_coins(canaries, coin_generator(secret, "numpy"))
    sizes = present.astype(np.float64) if plan.mechanism.adjacency != "replace" else np.where(present, 1.0, -1.0)
    vectors = np.zeros((total_examples, canaries + quiet))
    places = canary_places(canaries, total_examples, secret)
    vectors[places, np.arange(canaries)] = 1000.0 * sizes
    clipped_sum = gradients or (lambda rows: clipped_rows(rows, clip).sum(axis=0))
    rows, part = [], np.zeros((plan.steps, total_examples), dtype=np.bool_)
    leaves, again, replayed = [(canaries + quiet,)], plan.steps // 2, 0.0

    def take(run: Run, t: int) -> Array:
        indices, mask = run.batch(t)
        used = indices[mask]
        part[t, used] = True
        noisy = np.asarray(step(run, t, clipped_sum(vectors[used] * signs[t])))
        run.commit(t, run.digest(t, [noisy]))
        return noisy

    def resumed() -> Run:
        return Run.open(plan, directory, leaves=leaves, examples=total_examples, secret=secret)

    with resumed() as run:
        rows += [take(run, t) for t in range(again)]
    with resumed() as run:  # as after a crash: the last step is taken again, and must release the same values
        if again:
            difference = np.abs(take(run, again - 1) - rows[-1]).max()
            replayed = float(difference) / (clip * plan.mechanism.noise_std)
        rows += [take(run, t) for t in range(again, plan.steps)]
    released = np.stack(rows) / clip
    return Release(
        released[:, :canaries],
        present,
        part[:, places],
        released[:, canaries:],
        signs,
        replayed,
        source="NumPy loop",
        seconds=time.perf_counter() - start,
    )


def clipped_rows(rows: Array, clip_norm: float) -> Array:
    """Return each row scaled to norm at most `clip_norm`."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, clip_norm / np.maximum(lengths, 1e-300))


def _check_canaries(canaries: int, examples: int) -> None:
    _check.positive_integer("audit", "canaries", canaries)
    if canaries > examples:
        raise _check.invalid("audit", "canaries", f"at most {examples}, the examples", canaries, "use fewer canaries")


def released_matrix(rows: list[Any], clip_norm: float) -> Array:
    """Return recorded sums, one row per step, in units of the clipping norm."""
    return np.stack([np.asarray(row, dtype=np.float64).reshape(-1) for row in rows]) / clip_norm
