"""Trains a model twice: without interruption, and killed in every step and resumed.

Run as a script, it writes the final parameters of both: python -m tests.torch.killed <directory> <mode>
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch._dynamo  # loaded by the first optimizer; here, before the processes fork

import antiphase as ap
import antiphase._run.opening
from antiphase._run import Run
from tests.torch.training import STEPS, lattice_plan_for, pieces, plan_for, private

PLANS = {
    "hooks": plan_for(),
    "ghost": plan_for(ap.strategies.Toeplitz([1.0, 0.5, 0.25], STEPS)),
    "poisson": plan_for(ap.strategies.Identity(STEPS), ap.Poisson(0.03)),
    "lattice": lattice_plan_for(),
}
PLACES = ("before the commit", "after the commit", "after the checkpoint")
OPTIONS = {"hooks": {}, "ghost": {"grad_sample_mode": "ghost"}, "poisson": {}, "lattice": {}}


def store(path, module, optimizer, engine):
    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "privacy": engine.state_dict()}
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def resume(path, module, optimizer, engine):
    if path.exists():
        state = torch.load(path)
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        engine.load_state_dict(state["privacy"])
    else:
        engine.restart()


def work(directory, mode, die=lambda place, step: None, physical=4):
    """Train from the last checkpoint to the end, and write a checkpoint every third step.

    Calls die(place, step) at each of PLACES, which may kill the process.
    """
    engine, module, optimizer, criterion, loader = private(directory / "run", PLANS[mode], **OPTIONS[mode])
    checkpoint = directory / "checkpoint.pt"
    resume(checkpoint, module, optimizer, engine)
    commit = Run._commit

    def dying_commit(self, step, digest, **options):
        die("before the commit", step)
        commit(self, step, digest, **options)
        die("after the commit", step)

    Run._commit = dying_commit
    while engine.step < STEPS:
        with pieces(loader, optimizer, physical) as batches:
            for x, y in batches:
                step = engine.step
                optimizer.zero_grad()
                criterion(module(x), y).backward()
                optimizer.step()
                if engine.step // 3 > step // 3:
                    store(checkpoint, module, optimizer, engine)
                    die("after the checkpoint", step)
    torch.save([p.detach() for p in optimizer.params], directory / "parameters.pt")
    engine.close()


def killer(place, step):
    def die(here, now):
        if (here, now) == (place, step):
            os.kill(os.getpid(), signal.SIGKILL)

    return die


def attempt(directory, mode, die):
    """Call `work` in a process of its own, and return its exit code."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            work(directory, mode, die)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(directory, mode):
    antiphase._run.opening.fresh_run_id = lambda: "0" * 32
    steady, killed = directory / "steady", directory / "killed"
    steady.mkdir()
    killed.mkdir()
    assert attempt(steady, mode, lambda *_: None) == 0
    kinds = 2 if mode == "poisson" else 3  # a checkpoint may fall in a step that has no example
    for step in range(STEPS):
        assert attempt(killed, mode, killer(PLACES[step % kinds], step)) == -signal.SIGKILL
    assert attempt(killed, mode, lambda *_: None) == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
