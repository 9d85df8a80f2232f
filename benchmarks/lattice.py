"""Cost of lattice noise compared with the default noise in float32: time of a step, time of a draw, and memory.

Lattice noise consists of exact integers on a grid. A step generates the noise of all parameters on all cores. CPU time
is summed over the cores, and hardly depends on other load on the machine. The two kinds of noise are measured
alternately, several times. The tables show the smallest times.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np

from antiphase import Lattice, MinSeparation, NoiseStream, Secret, choose_lattice, rounded_strategy
from antiphase.strategies import BLT, Identity, Strategy, Toeplitz
from benchmarks._measure import print_table, readable, sized

SIZES = sized((100_000, 1_000_000, 4_000_000), (1000,))
TURNS = sized(5, 1)
STEPS = sized(2000, 64)
CONTRIBUTIONS = sized(100, 2)
NOISE_STD = 3.0

STRATEGIES: list[tuple[str, Strategy]] = [
    ("identity", Identity(STEPS)),
    ("BLT, 4 buffers", BLT([0.9999, 0.97, 0.8, 0.3], [0.01, 0.05, 0.1, 0.2], STEPS)),
    ("Toeplitz, 16 bands", Toeplitz.square_root(STEPS, 16)),
]


def stream(strategy: Strategy, parameters: int, lattice: Lattice | None) -> NoiseStream:
    mechanism = SimpleNamespace(strategy=strategy, noise_std=NOISE_STD, fingerprint="benchmark", lattice=lattice)
    return NoiseStream(mechanism, [(parameters,)], Secret.insecure(0))


def measured(streams: list[NoiseStream]) -> list[tuple[float, float]]:
    """Return the wall-clock and CPU seconds of a step of each stream."""
    times = [(float("inf"), float("inf"))] * len(streams)
    ahead = 16  # the float32 stream computes several steps at once
    for _ in range(TURNS):
        for i, source in enumerate(streams):
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(ahead):
                source.next()
            found = ((time.perf_counter() - wall) / ahead, (time.process_time() - cpu) / ahead)
            times[i] = (min(times[i][0], found[0]), min(times[i][1], found[1]))
    return times


def rows() -> list[list[str]]:
    made = []
    for name, strategy in STRATEGIES:
        rounded = rounded_strategy(strategy)
        for parameters in SIZES:
            lattice = choose_lattice(rounded, MinSeparation(STEPS), NOISE_STD, parameters)
            streams = [stream(strategy, parameters, None), stream(rounded, parameters, lattice)]
            for source in streams:
                source.next()  # compiles
            (fast, fast_cpu), (exact, exact_cpu) = measured(streams)
            made.append(
                [
                    name,
                    f"{parameters:,}",
                    readable(fast),
                    readable(exact),
                    f"{exact_cpu / fast_cpu:.1f}",
                    f"{exact_cpu / parameters * 1e9:.0f} ns",
                    f"{streams[0].state_bytes / 1e6:.1f} MB",
                    f"{streams[1].state_bytes / 1e6:.1f} MB",
                ]
            )
    return made


def contributions() -> list[list[str]]:
    made = []
    for parameters in SIZES:
        lattice = choose_lattice(Identity(STEPS), MinSeparation(STEPS), NOISE_STD, parameters)
        update = [np.random.default_rng(0).standard_normal(parameters).astype(np.float32)]
        lattice.contribution(update)
        count = max(CONTRIBUTIONS * 100_000 // parameters, 1)
        start = time.process_time()
        for _ in range(count):
            lattice.contribution(update)
        made.append([f"{parameters:,}", readable((time.process_time() - start) / count)])
    return made


def main() -> None:
    head = ["strategy", "parameters", "float32", "lattice", "CPU ratio", "CPU per draw", "state", "lattice's state"]
    print_table("Noise of a step", head, rows())
    print_table("Rounding one contribution to the lattice (CPU time)", ["parameters", "time"], contributions())


if __name__ == "__main__":
    main()
