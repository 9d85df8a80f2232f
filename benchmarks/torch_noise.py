"""The PyTorch integration beside Opacus's own white noise: the noise step, the whole ghost-clipping step, memory.

The two sides take turns, some steps each, and ratios are medians over the turns: a busy machine slows both. A turn of
ours is a whole number of lookahead blocks, and its time the mean over its steps. Our step includes the ledger: the
digest of the 4 million gradients and the commit.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import antiphase as ap
import antiphase.torch
from antiphase._noise import NoiseStream
from antiphase.torch._distributed import TorchDistributed
from antiphase.torch._shards import own_leaves
from benchmarks._measure import print_table, readable, sized

WIDTH, LAYERS, BATCH = sized((1000, 4, 256), (10, 2, 4))
STEPS = 1 << 12
TURNS = sized(int(os.environ.get("TURNS", "5")), 1)
Timer = Callable[[], float]

# strategy, steps of a turn, goals: noise step as a multiple of Opacus's, whole ghost step likewise
CASES: list[tuple[str, ap.strategies.Strategy, int, float, float]] = [
    ("BLT, 4 buffers", ap.strategies.BLT([0.9999, 0.97, 0.8, 0.3], [0.01, 0.05, 0.1, 0.2], STEPS), 4, 1.0, 1.03),
    ("Toeplitz, 16 bands", ap.strategies.Toeplitz.square_root(STEPS, 16), 8, 2.0, 1.05),
    ("Toeplitz, 64 bands", ap.strategies.Toeplitz.square_root(STEPS, 64), 32, 4.0, 1.12),
]


def plan_for(strategy: ap.strategies.Strategy) -> ap.Plan:
    """Every example in every step: batches of the same size on both sides. What it costs does not matter here."""
    mechanism = ap.Mechanism(strategy, ap.EveryStep(), 1.0)
    problem = ap.Problem(steps=STEPS, budget=ap.Budget(1e9, 1e-6), batch_size=BATCH, participation=ap.EveryStep())
    return ap.Plan(problem, mechanism, ap.Bound(1e9, "upper", "not computed", "benchmark"), error=1.0)


def network() -> nn.Sequential:
    """4 million parameters."""
    return nn.Sequential(*[part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])


def data() -> TensorDataset:
    return TensorDataset(torch.randn(BATCH, WIDTH), torch.randint(0, WIDTH, (BATCH,)))


def mean_of(step: Callable[[], object], steps: int) -> Timer:
    """Without the garbage collector, as timeit has it: it stops for 200 ms in whichever step it comes to."""

    def turn() -> float:
        gc.disable()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        seconds = (time.perf_counter() - start) / steps
        gc.enable()
        return seconds

    return turn


def our_noise(directory: Path, strategy: ap.strategies.Strategy, steps: int, *, with_ledger: bool) -> Timer:
    parameters = [torch.zeros(WIDTH, WIDTH) for _ in range(LAYERS)]
    noise = antiphase.torch.NoiseAdder(parameters, plan_for(strategy), directory)

    def turn() -> float:
        spent = 0.0
        for _ in range(steps):
            start = time.perf_counter()
            noise.add()
            added = time.perf_counter()
            noise.commit()
            spent += (time.perf_counter() if with_ledger else added) - start
        return spent / steps

    return turn


def opacus_noise() -> Callable[[], object]:
    parameters = [nn.Parameter(torch.zeros(WIDTH, WIDTH)) for _ in range(LAYERS)]
    optimizer = DPOptimizer(
        torch.optim.SGD(parameters, lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=BATCH
    )

    def step() -> None:
        for p in parameters:
            p.summed_grad = torch.zeros_like(p)
        optimizer.add_noise()

    return step


def for_ever(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def training(module: Any, optimizer: Any, criterion: Any, loader: DataLoader[Any]) -> Callable[[], object]:
    batches = for_ever(loader)

    def step() -> None:
        x, y = next(batches)
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()

    return step


def our_training(directory: Path, strategy: ap.strategies.Strategy) -> Callable[[], object]:
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    engine = antiphase.torch.PrivacyEngine(directory)
    return training(*engine.make_private(module, optimizer, data(), plan_for(strategy), grad_sample_mode="ghost"))


def opacus_training() -> Callable[[], object]:
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    made = PrivacyEngine().make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(data(), batch_size=BATCH, shuffle=True),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode="ghost",
    )
    return training(*made)


def compare(ours: Timer, theirs: Timer) -> tuple[float, float, float]:
    """Median times and the median of the ratios of turns taken one after the other."""
    ours(), theirs()
    turns = [(ours(), theirs()) for _ in range(TURNS)]
    first, second = (statistics.median(times) for times in zip(*turns, strict=True))
    return first, second, statistics.median(a / b for a, b in turns)


def memory(strategy: ap.strategies.Strategy) -> float:
    """Noise state of the larger of two ranks, as a part of that of one process."""
    parameters, plan = [p.detach() for p in network().parameters()], plan_for(strategy)
    sizes = []
    for world in (TorchDistributed(), TorchDistributed(0, 2), TorchDistributed(1, 2)):
        stream = NoiseStream(plan, own_leaves(parameters, world), ap.Secret.insecure(0))
        stream.next()
        sizes.append(stream.state_bytes)
    return max(sizes[1:]) / sizes[0]


def main() -> None:
    warnings.simplefilter("ignore")
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        paths = (Path(directory) / str(i) for i in range(99))
        for name, strategy, steps, noise_goal, step_goal in CASES:
            white = mean_of(opacus_noise(), 2)
            for what, with_ledger in (("noise", False), ("noise and ledger", True)):
                timer = our_noise(next(paths), strategy, max(steps, 16), with_ledger=with_ledger)
                mine, theirs, ratio = compare(timer, white)
                goal = f"at most {noise_goal:g}" if not with_ledger else ""
                rows.append([f"{name}: {what}", readable(mine), readable(theirs), f"{ratio:.2f}", goal])
            step = our_training(next(paths), strategy)
            mine, theirs, ratio = compare(mean_of(step, steps), mean_of(opacus_training(), 4))
            goal = f"at most {step_goal:g}"
            rows.append([f"{name}: ghost step", readable(mine), readable(theirs), f"{ratio:.2f}", goal])
            rows.append([f"{name}: memory, 2 ranks", "", "", f"{memory(strategy):.3f}", "at most 0.55"])
    columns = ["", "ours", "Opacus", "ratio", "goal"]
    print_table(f"Beside Opacus, {LAYERS * (WIDTH + 1) * WIDTH:,} parameters", columns, rows)


if __name__ == "__main__":
    main()
