"""Time and memory of the PyTorch integration, compared with Opacus and its independent noise.

The table shows the noise of a step, whole training steps with ghost clipping and with hooks, and memory. The two
libraries alternate in turns of a few steps, so that other load on the machine affects both. Ratios are medians over the
turns. Our noise stream computes the noise of several steps at once (a block). Therefore each of our turns consists of
whole blocks, and its time is the mean over its steps. Our training step includes the ledger: the digest of the
gradients and the commit. The column "CPU" shows the ratio of CPU times, which depends less on other processes. On a
busy machine, set OMP_NUM_THREADS=1, because threads of PyTorch that wait for each other also use CPU time.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from benchmarks._small_models import Llama, convnet

WIDTH, LAYERS, BATCH = sized((1000, 4, 256), (10, 2, 4))
STEPS = 1 << 12
TURNS = sized(int(os.environ.get("TURNS", "5")), 1)
Cost = tuple[float, float]  # seconds of wall clock and of CPU for a step
Timer = Callable[[], Cost]

# name, strategy, steps per turn, and goals for our time divided by Opacus's: for the noise, and for a whole step with
# ghost clipping
CASES: list[tuple[str, ap.strategies.Strategy, int, float, float]] = [
    ("BLT, 4 buffers", ap.strategies.BLT([0.9999, 0.97, 0.8, 0.3], [0.01, 0.05, 0.1, 0.2], STEPS), 4, 1.0, 1.05),
    ("Toeplitz, 16 bands", ap.strategies.Toeplitz.square_root(STEPS, 16), 8, 2.0, 1.07),
    ("Toeplitz, 64 bands", ap.strategies.Toeplitz.square_root(STEPS, 64), 32, 4.0, 1.12),
]


def plan_for(strategy: ap.strategies.Strategy, batch: int = BATCH) -> ap.Plan:
    """Return a plan in which every example takes part in every step. So batches have the same size as with Opacus.

    The privacy guarantee of this plan is not computed.
    """
    mechanism = ap.Mechanism(strategy, ap.EveryStep(), 1.0)
    problem = ap.Problem(steps=STEPS, budget=ap.Budget(1e9, 1e-6), batch_size=batch, participation=ap.EveryStep())
    return ap.Plan(problem, mechanism, ap.Bound(1e9, "upper", "not computed", "benchmark"), error=1.0)


def network() -> nn.Sequential:
    """Return a network with 4 million parameters."""
    return nn.Sequential(*[part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])


def data() -> TensorDataset:
    return TensorDataset(torch.randn(BATCH, WIDTH), torch.randint(0, WIDTH, (BATCH,)))


def now() -> Cost:
    return time.perf_counter(), time.process_time()


def mean_of(step: Callable[[], object], steps: int) -> Timer:
    """Return a function that returns the mean time of a step in seconds.

    As in `timeit`, the garbage collector is disabled, because it can take 200 ms in any step.
    """

    def turn() -> Cost:
        gc.disable()
        start = now()
        for _ in range(steps):
            step()
        end = now()
        gc.enable()
        return (end[0] - start[0]) / steps, (end[1] - start[1]) / steps

    return turn


def our_noise(directory: Path, strategy: ap.strategies.Strategy, steps: int, *, with_ledger: bool) -> Timer:
    parameters = [torch.zeros(WIDTH, WIDTH) for _ in range(LAYERS)]
    noise = antiphase.torch.NoiseAdder(parameters, plan_for(strategy), directory)

    def turn() -> Cost:
        wall = cpu = 0.0
        for _ in range(steps):
            start = now()
            noise.add()
            added = now()
            noise.commit()
            end = now() if with_ledger else added
            wall, cpu = wall + end[0] - start[0], cpu + end[1] - start[1]
        return wall / steps, cpu / steps

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


@dataclass(frozen=True)
class Task:
    """A model, its data, and the mode in which its gradients are clipped."""

    model: Callable[[], nn.Module]
    data: Callable[[], TensorDataset]
    mode: str


MLP = Task(network, data, "ghost")
TOKENS, LENGTH, SIDE = sized(768, 32), sized(64, 8), 32
HOOKS = {
    "small Llama, hooks": Task(
        lambda: Llama(TOKENS, *sized((128, 344, 4, 2), (8, 16, 2, 1))),
        lambda: TensorDataset(*(torch.randint(0, TOKENS, (sized(16, 2), LENGTH)) for _ in range(2))),
        "hooks",
    ),
    "convnet, hooks": Task(
        lambda: convnet(sized(32, 4)),
        lambda: TensorDataset(torch.randn(sized(64, 2), 3, SIDE, SIDE), torch.randint(0, 10, (sized(64, 2),))),
        "hooks",
    ),
}


def our_training(directory: Path, strategy: ap.strategies.Strategy, task: Task = MLP) -> Callable[[], object]:
    module, examples = task.model(), task.data()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    engine = antiphase.torch.PrivacyEngine(directory)
    plan = plan_for(strategy, len(examples))
    made = engine.make_private(module, optimizer, examples, plan, grad_sample_mode=task.mode)
    return training(*with_criterion(*made))


def opacus_training(task: Task = MLP) -> Callable[[], object]:
    module, examples = task.model(), task.data()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    made = PrivacyEngine().make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(examples, batch_size=len(examples), shuffle=True),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=task.mode,
    )
    return training(*with_criterion(*made))


def with_criterion(module: Any, optimizer: Any, *rest: Any) -> tuple[Any, ...]:
    """Return module, optimizer, criterion and loader. With hooks, `make_private` has no criterion, so one is added."""
    return (module, optimizer, *rest) if len(rest) == 2 else (module, optimizer, nn.CrossEntropyLoss(), *rest)


def compare(ours: Timer, theirs: Timer) -> list[str]:
    """Return texts for our median time, their median time, and the median ratios of wall-clock and of CPU times.

    Each ratio is that of two turns taken one after the other.
    """
    ours(), theirs()
    turns = [(ours(), theirs()) for _ in range(TURNS)]
    first, second = (statistics.median(cost[0] for cost in costs) for costs in zip(*turns, strict=True))
    ratios = [statistics.median(a[i] / b[i] for a, b in turns) for i in (0, 1)]
    return [readable(first), readable(second), *(f"{ratio:.2f}" for ratio in ratios)]


def peak_memory(side: str) -> float:
    """Return the peak memory in MB of a process that takes a few steps with ghost clipping and 16 bands.

    `side` is "ours" or "theirs".
    """
    command = [sys.executable, "-m", "benchmarks.torch_noise", side]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(found.stdout.split()[-1])


def print_peak(side: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        step = opacus_training() if side == "theirs" else our_training(Path(directory), CASES[1][1])
        for _ in range(5):
            step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def memory(strategy: ap.strategies.Strategy) -> float:
    """Return the larger of the noise states of two ranks, as a fraction of the noise state of a single process."""
    parameters, plan = [p.detach() for p in network().parameters()], plan_for(strategy)
    sizes = []
    for world in (TorchDistributed(), TorchDistributed(0, 2), TorchDistributed(1, 2)):
        stream = NoiseStream(plan, own_leaves(parameters, world), ap.Secret.insecure(0))
        stream.next()
        sizes.append(stream.state_bytes)
    return max(sizes[1:]) / sizes[0]


def main() -> None:
    warnings.simplefilter("ignore")
    if len(sys.argv) > 1:
        print_peak(sys.argv[1])
        return
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        paths = (Path(directory) / str(i) for i in range(99))
        for name, strategy, steps, noise_goal, step_goal in CASES:
            white = mean_of(opacus_noise(), 2)
            for what, with_ledger in (("noise", False), ("noise and ledger", True)):
                timer = our_noise(next(paths), strategy, max(steps, 16), with_ledger=with_ledger)
                goal = f"at most {noise_goal:g}" if not with_ledger else ""
                rows.append([f"{name}: {what}", *compare(timer, white), goal])
            step = our_training(next(paths), strategy)
            costs = compare(mean_of(step, max(steps, 8)), mean_of(opacus_training(), 8))
            rows.append([f"{name}: ghost step", *costs, f"at most {step_goal:g}"])
            rows.append([f"{name}: memory, 2 ranks", "", "", f"{memory(strategy):.3f}", "", "at most 0.55"])
        for name, task in HOOKS.items():
            _, strategy, steps, *_ = CASES[0]
            step = our_training(next(paths), strategy, task)
            costs = compare(mean_of(step, 4 * steps), mean_of(opacus_training(task), 4 * steps))
            rows.append([f"{name}: step", *costs, "at most 1.1"])
    mine, theirs = peak_memory("ours"), peak_memory("theirs")
    rows.append(["16 bands: peak memory", f"{mine:.0f} MB", f"{theirs:.0f} MB", f"{mine / theirs:.2f}", "", ""])
    columns = ["", "ours", "Opacus", "ratio", "CPU", "goal"]
    print_table(f"Compared with Opacus, {LAYERS * (WIDTH + 1) * WIDTH:,} parameters", columns, rows)


if __name__ == "__main__":
    main()
