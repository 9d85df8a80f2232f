"""Time of noise streams, compared with jax_privacy's privatizers and NumPy's own generator.

A step adds noise to a float32 gradient in place. The two libraries alternate in turns of a few steps, so that other
load on the machine affects both. Ratios are medians over the turns. Some of our noise streams compute the noise of
several steps at once (a block), so one step takes long and the following ones are short. Therefore each of our turns
consists of whole blocks, and its time is the mean over its steps.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from antiphase._noise import NoiseStream
from antiphase._secret import Secret
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Identity, Strategy, Toeplitz, Tree
from benchmarks._measure import TINY, print_table, readable, sized

PARAMETERS = sized(4_000_000, 1000)
DENSE_PARAMETERS = sized(400_000, 100)
DENSE_STEPS = sized(2000, 64)
TURNS = sized(int(os.environ.get("TURNS", "7")), 1)
STEPS = 1 << 12
Timer = Callable[[], float]


def toeplitz(bands: int) -> Toeplitz:
    return Toeplitz.square_root(STEPS, bands)


# name, strategy, steps per turn, privatizer of jax_privacy to compare with, goal for how many times faster we are
# (0 for no comparison)
CASES: list[tuple[str, Strategy, int, str, float]] = [
    ("identity (the floor)", Identity(STEPS), 4, "identity", 8),
    ("BLT, 4 buffers", BLT([0.9999, 0.97, 0.8, 0.3], [0.01, 0.05, 0.1, 0.2], STEPS), 4, "blt-4", 20),
    ("Toeplitz, 16 bands", toeplitz(16), 16, "toeplitz-16", 5),
    ("Toeplitz, 64 bands", toeplitz(64), 16, "toeplitz-64", 8),
    ("Banded, 16 bands", Banded(toeplitz(16).columns()), 16, "toeplitz-16", 5),
    ("Banded, 64 bands", Banded(toeplitz(64).columns()), 16, "toeplitz-64", 8),
    ("BandedInverse, 4 bands", BandedInverse.square_root(4, STEPS), 4, "identity", 0),
    ("Tree, online", Tree(STEPS), 16, "identity", 0),
]


def make(strategy: Strategy, parameters: int) -> NoiseStream:
    mechanism = SimpleNamespace(strategy=strategy, noise_std=1.0, fingerprint="benchmark")
    return NoiseStream(mechanism, [(parameters,)], Secret.insecure(0))


def timer(strategy: Strategy, steps: int, parameters: int = PARAMETERS) -> Timer:
    stream, gradient = make(strategy, parameters), np.zeros(parameters, dtype=np.float32)

    def turn() -> float:
        start = time.perf_counter()
        for _ in range(steps):
            stream.add_to([gradient])
        return (time.perf_counter() - start) / steps

    return turn


class Peer:
    """Runs noise steps of jax_privacy in its own interpreter. With --tiny, it is not run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        if TINY:
            return
        script = Path(__file__).parent / "_peer" / "noise.py"
        command = [os.environ.get("PEER", ".venv-peer/bin/python"), str(script), str(PARAMETERS)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(self, name: str) -> float:
        if self._process is None:
            return math.nan
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()


def compare_with_jax_privacy() -> None:
    peer, floor, rows = Peer(), timer(CASES[0][1], CASES[0][2]), []
    for name, strategy, steps, other, goal in CASES:
        ours = timer(strategy, steps)
        for _ in range(5):  # compile, and fill the history of the stream
            peer.step(other), ours(), floor()
        turns = [(ours(), statistics.median(peer.step(other) for _ in range(3)), floor()) for _ in range(TURNS)]
        mine, theirs, _ = (statistics.median(column) for column in zip(*turns, strict=True))
        row = [name, readable(mine), f"{statistics.median(a / c for a, _, c in turns):.2f}"]
        if goal:
            row += [readable(theirs), f"{statistics.median(b / a for a, b, _ in turns):.1f}", f"{goal:g}"]
        rows.append([*row, *[""] * (6 - len(row))])
        print(f"{name}: {mine * 1e3:.1f} ms", file=sys.stderr)
    peer.close()
    columns = ["stream", "antiphase", "x floor", "jax_privacy", "times faster", "goal"]
    print_table(f"A step of noise, {PARAMETERS:,} float32 parameters", columns, rows)
    print("goal for BLT with 4 buffers: at most 2.5 x floor, which is the time of independent noise\n")


def compare_dense_with_numpy() -> None:
    """Compare the mean time of all steps of a dense strategy with NumPy's generator, in alternating turns."""
    strategy = Dense(np.tril(Toeplitz.square_root(DENSE_STEPS).encoder()))
    ours, generator = timer(strategy, 32, DENSE_PARAMETERS), np.random.default_rng(0)
    draw, turns = np.empty(DENSE_PARAMETERS, dtype=np.float32), []
    for _ in range(DENSE_STEPS // 32):
        start = time.perf_counter()
        for _ in range(8):
            generator.standard_normal(out=draw, dtype=np.float32)
        theirs = (time.perf_counter() - start) / 8
        turns.append((ours(), theirs))
    mine, theirs = (statistics.mean(column) for column in zip(*turns, strict=True))
    row = [f"{DENSE_STEPS:,}", readable(mine), readable(theirs), f"{mine / theirs:.1f}", "8"]
    columns = ["steps", "antiphase, mean of all steps", "NumPy i.i.d.", "ratio", "goal: at most"]
    print_table(f"Dense lower-triangular C, {DENSE_PARAMETERS:,} float32 parameters", columns, [row])


if __name__ == "__main__":
    compare_with_jax_privacy()
    compare_dense_with_numpy()
