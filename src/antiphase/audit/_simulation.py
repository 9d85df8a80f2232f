"""Runs canaries (artificial examples) through the library's own noise and batches, with or without a run directory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
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
LARGEST_CHUNK = 20_000_000  # maximum number of noise values of a simulated run to hold in memory
QUIET = 256


def fair_coins(count: int, rng: np.random.Generator, *, balanced: bool = False) -> Flags:
    """Flip an independent fair coin for each canary. If `balanced`, exactly half of the coins are heads instead."""
    if balanced:
        return rng.permutation(np.arange(count) % 2 == 0)
    return rng.random(count) < 0.5


def canary_places(canaries: int, examples: int, secret: Secret) -> Indices:
    """Return random example indices for the canaries, because a program may treat the first examples differently."""
    return coin_generator(secret, "places").permutation(examples)[:canaries]


def coin_generator(secret: Secret, *what: str | int) -> np.random.Generator:
    """Return a random generator for coins, derived from the secret. The program cannot predict it."""
    return np.random.default_rng(int.from_bytes(secret.derive("audit coins", *what), "big"))


def simulate(
    mechanism: Mechanism,
    *,
    canaries: int,
    runs: int = 1,
    quiet: int = QUIET,
    secret: Secret | None = None,
) -> Release:
    """Simulate runs of a mechanism with canaries and the library's own noise, and return what they release.

    Noise comes from `NoiseStream`, and random batches from the mechanism's sampler. Under deterministic participations,
    canaries take part in the steps in which they leak most (`worst_pattern`).

    Args:
        mechanism: mechanism to simulate.
        canaries: number of canaries in each run.
        runs: number of runs, with separate noise and batches.
        quiet: number of directions in which no canary contributes.
        secret: secret of the noise, batches and coins; None for a fresh one.
    """
    owner = "simulate"
    canaries = _check.positive_integer(owner, "canaries", canaries)
    runs = _check.positive_integer(owner, "runs", runs)
    secret = Secret.generate() if secret is None else secret
    start = time.perf_counter()
    n = mechanism.strategy.steps
    most = max(1, min(LARGEST_CHUNK // n, mechanism.examples or canaries))
    chunks = [min(most, canaries - done) for done in range(0, canaries, most)]
    quiet_share = max(1, quiet // (len(chunks) * runs))
    found = [
        _simulated(mechanism, size, quiet_share, secret, f"audit-{run}-{i}")
        for run in range(runs)
        for i, size in enumerate(chunks)
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
        single_run=whole.single_run,
    )


def _simulated(mechanism: Mechanism, canaries: int, quiet: int, secret: Secret, run_id: str) -> Release:
    strategy, given, rng = mechanism.strategy, mechanism.participation, coin_generator(secret, run_id)
    if isinstance(given, Deterministic):
        pattern = worst_pattern(strategy, given)
        part, signs = np.repeat((pattern != 0.0)[:, None], canaries, axis=1), np.where(pattern == 0.0, 1.0, pattern)
    else:
        part, signs = drawn_patterns(mechanism, canaries, secret.child(run_id)), canary_signs(strategy, given)
    present = fair_coins(canaries, rng)
    lattice, entries = mechanism.lattice, canaries + quiet
    if lattice is not None and lattice.entries < entries:  # raise the limit; it does not affect the noise
        mechanism = replace(mechanism, lattice=replace(lattice, entries=entries))
    dtype = "float32" if lattice is None else None
    noise = _noise(NoiseStream(mechanism, {"canaries": Leaf((entries,))}, secret, run_id, dtype=dtype), mechanism)
    sizes = present.astype(np.float64) if mechanism.adjacency != "replace" else np.where(present, 1.0, -1.0)
    projections = noise[:, :canaries] + part * signs[:, None] * sizes[None, :]
    return Release(projections, present, part, noise[:, canaries:], signs, single_run=True)


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
    """Simulate a run with the plan, parameter shapes, dtype and number of examples of a stored run, and with canaries.

    Noise and batches come from the same code as in the stored run, but from a different key, which is derived from the
    run's secret. Everything computed from the result can therefore be published. Numbers computed from the stored run's
    own noise must not be published. With such numbers and the released sums, anyone could test which of two data sets
    was used.

    Returns None if an integration generated the noise of the stored run on a device, such as a GPU.

    Args:
        record: record of the stored run.
        entries: largest number of parameters (single numbers) to simulate. Half of them belong to canaries, and the
            others contain only noise.
    """
    start = time.perf_counter()
    mechanism, plan = record.plan.mechanism, record.plan
    if record.history.source != HOST:
        return None
    run_id = record.header.run_id
    secret = record.secret.child("audit", run_id)
    leaves = _first_entries({name: from_json(leaf) for name, leaf in record.header.leaves}, entries)
    stream = NoiseStream(plan, leaves, secret, run_id, dtype=record.header.dtype)
    noise = _noise(stream, mechanism)
    examples = record.header.examples
    size = noise.shape[1] // 2
    if examples is None:
        pattern = worst_pattern(mechanism.strategy, mechanism.participation.worst_case)
        part = np.repeat((pattern != 0.0)[:, None], size, axis=1)
    else:
        size, sampler = min(size, examples), record.header.sampler(plan, plan.steps, secret)
        part = np.zeros((plan.steps, examples), dtype=np.bool_)
        for t in range(plan.steps):
            indices, mask = sampler.batch(t)
            part[t, indices[mask]] = True
        part = part[:, :size]
    signs = canary_signs(mechanism.strategy, mechanism.participation)
    present = fair_coins(size, coin_generator(secret, "run", run_id))
    sizes = present.astype(np.float64) if mechanism.adjacency != "replace" else np.where(present, 1.0, -1.0)
    return Release(
        noise[:, :size] + part * signs[:, None] * sizes,
        present,
        part,
        noise[:, size:],
        signs,
        source=f"simulation of run {run_id[:8]}",
        seconds=time.perf_counter() - start,
        single_run=True,
    )


def _noise(stream: NoiseStream, mechanism: Mechanism) -> Array:
    """Return all noise of a new stream in units of the clipping norm, shape (steps, entries)."""
    unit = 1.0 if mechanism.lattice is None else 1.0 / mechanism.lattice.norm
    rows = (np.concatenate([part.ravel() for part in stream.next()]) for _ in range(stream.steps))
    return np.stack([row.astype(np.float64) * unit for row in rows])


def _first_entries(leaves: dict[str, Leaf], most: int) -> dict[str, Leaf]:
    """Return the first rows of each leaf (array of the model), about `most` entries in total.

    The noise of these rows is the same as in whole leaves.
    """
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
    """Run a training loop in NumPy with canary examples, using the batches, noise and ledger of a real run.

    The data are one-hot vectors. The gradient of an example is its vector times 1000, clipped to the plan's norm.
    Halfway through, the run is closed and opened again, and its last step is replayed.

    Args:
        plan: plan to run.
        directory: directory of the run; must be empty.
        canaries: number of canary examples.
        quiet: number of directions in which no example contributes.
        examples: number of examples, including canaries; by default, the number in the plan's problem, or the canaries
            alone.
        secret: secret of the run; None for a fresh one.
        step: the audited part of the loop, a function (run, step, sum of clipped gradients) -> noisy sum.
        gradients: function (rows of gradients) -> sum of the clipped gradients. By default, each row is clipped.
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
    with resumed() as run:  # as after a crash: the last step is replayed and must release the same values
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
        single_run=True,
    )


def clipped_rows(rows: Array, clip_norm: float) -> Array:
    """Return each row scaled to norm at most `clip_norm`."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, clip_norm / np.maximum(lengths, 1e-300))


def _check_canaries(canaries: int, examples: int) -> None:
    _check.positive_integer("audit", "canaries", canaries)
    if canaries > examples:
        raise _check.invalid(
            "audit", "canaries", f"at most {examples}, the number of examples", canaries, "use fewer canaries"
        )


def released_matrix(rows: list[Any], clip_norm: float) -> Array:
    """Return recorded sums, one row per step, in units of the clipping norm."""
    return np.stack([np.asarray(row, dtype=np.float64).reshape(-1) for row in rows]) / clip_norm
