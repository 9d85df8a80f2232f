"""Two processes that train one model with canaries; writes what each scenario released.

python -m tests.audit.engines.processes <directory> [seed]
"""

import multiprocessing
import os
import sys
import traceback
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
import torch._dynamo  # loaded by the first optimizer; here, before the processes fork
import torch.distributed as dist
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from opacus.utils.fsdp_utils import FSDP2Wrapper

from antiphase.torch import _noise_adder
from tests.audit.engines.torch_audits import released

WORLD = 2
RIGHT = _noise_adder.read_noise
WAYS = {"ddp": {"wrap": DPDDP}, "fsdp": {"wrap": FSDP2Wrapper, "mode": "ghost_fsdp"}}


def missing(rank):
    return lambda run, step: [(0 if rank == 1 else 1) * part for part in RIGHT(run, step)]


def same(rank):
    """Every rank draws its part from the same generator."""

    def read(run, step):
        rng, parts = np.random.default_rng(step), RIGHT(run, step)
        return [rng.normal(0, float(np.std(np.asarray(p))) or 1.0, p.shape).astype(np.float32) for p in parts]

    return read


def doubled(rank):
    """Both ranks add noise for the whole model, so that the sum has twice the variance."""
    return lambda run, step: [np.sqrt(2.0).astype(np.float32) * np.asarray(part) for part in RIGHT(run, step)]


SCENARIOS = {
    "ddp": ("ddp", None),
    "fsdp": ("fsdp", None),
    "ddp, noise of one rank missing": ("ddp", missing),
    "ddp, same noise on two ranks": ("ddp", same),
    "fsdp, noise of one rank missing": ("fsdp", missing),
    "ddp, all noise on every rank": ("ddp", doubled),
}

SEEN_BY = {
    "ddp": "",
    "fsdp": "",
    "ddp, noise of one rank missing": "noise: scale",
    "ddp, same noise on two ranks": "noise: directions",
    "fsdp, noise of one rank missing": "noise: scale",
    "ddp, all noise on every rank": "noise: scale",
}


def work(rank, directory, seed):
    try:
        torch.set_num_threads(1)
        store = dist.FileStore(str(directory / "store"), WORLD)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
        for name, (way, mistake) in SCENARIOS.items():
            _noise_adder.read_noise = RIGHT if mistake is None else mistake(rank)
            with patch("antiphase._run.opening.fresh_run_id", lambda: f"{seed:032x}"):
                found = released(directory / name, seed=seed, quiet=156, **WAYS[way])
            if rank == 0:
                found.save(directory / f"{name}.npz")
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main(directory, seed=3):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(rank, directory, seed)) for rank in range(WORLD)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(250)
    failed = [worker for worker in workers if worker.exitcode != 0]
    for worker in failed:
        worker.kill()
    sys.exit(bool(failed))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
