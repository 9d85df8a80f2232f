"""Runs of the integrations, small and without matrix products, so that their bits are those of every machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import antiphase as ap
from tests.stored.cases import STEPS, STRATEGIES, plan_for, sha256

SECRET = ap.Secret.insecure(3)
CLIENTS, GOAL = 24, 4


def torch_run(directory: Path, source: str, stop: int) -> str:
    """Train with `NoiseAdder` from where the directory stands up to `stop`; SHA-256 of the parameters."""
    import torch

    from antiphase.torch import NoiseAdder

    weight, bias = torch.zeros(3, 2, requires_grad=True), torch.zeros(5, requires_grad=True)
    checkpoint = directory / "checkpoint.pt"
    with NoiseAdder([weight, bias], plan_for(STRATEGIES["blt"]), directory / "run", source=source) as noise:
        if checkpoint.exists():
            stored = torch.load(checkpoint)
            with torch.no_grad():
                weight.copy_(stored["weight"])
                bias.copy_(stored["bias"])
            noise.load_state_dict(stored["noise"])
        while noise.step < stop:
            for p in (weight, bias):
                p.grad = torch.full_like(p, 0.125) * (1 + noise.step)
            noise.add()
            noise.commit()
            with torch.no_grad():
                for p in (weight, bias):
                    p.sub_(p.grad, alpha=0.25)
        if stop < STEPS:
            torch.save({"weight": weight.detach(), "bias": bias.detach(), "noise": noise.state_dict()}, checkpoint)
    return sha256([weight.detach().numpy(), bias.detach().numpy()])


def jax_run(directory: Path, source: str, stop: int) -> str:
    """Train with the Optax transformation from where the directory stands up to `stop`; SHA-256 of the parameters."""
    import jax.numpy as jnp
    import optax

    import antiphase.jax as apj

    params: Any = {"kernel": jnp.zeros((3, 2)), "bias": jnp.zeros(5)}
    plan = plan_for(STRATEGIES["blt"])
    with ap.Run.open(plan, directory / "run", leaves=apj.leaves(params), secret=SECRET) as run:
        noise: Any = getattr(apj, "add_correlated_noise", None) or apj.noise
        optimizer = optax.chain(noise(run, source), optax.sgd(0.25))
        state = optimizer.init(params)
        if (directory / "model").exists():
            like, hidden = apj.split(state)
            params, public = apj.load(directory / "model", (params, like), run)
            state = apj.join(public, apj.load(directory / "run" / "private" / "buffers", hidden, run))
        for step in range(int(state[0].step), stop):
            gradients = {name: jnp.full_like(p, 0.125) * (1 + step) for name, p in params.items()}
            updates, state = optimizer.update(gradients, state, params)
            params = optax.apply_updates(params, updates)
            apj.commit(run, state, params)
        if stop < STEPS:
            public, private = apj.split(state)
            apj.save(directory / "model", (params, public), run)
            apj.save(directory / "run" / "private" / "buffers", private, run)
    return sha256([np.asarray(params["kernel"]), np.asarray(params["bias"])])


def flower_run(directory: Path, stop: int) -> float:
    """Serve releases from where the directory stands up to `stop`; how far the model is from the one by hand.

    Clients are chosen anew at every start, so the model is compared with the sum of what the recorded clients sent and
    the noise of the run's key.
    """
    from antiphase._federated import read_state
    from tests.flower.federation import blt, federation, model, model_by_hand, plan_for, strategy, updates

    grid, plan = federation(directory / "c", CLIENTS), plan_for(blt(6))

    class Stop(Exception):
        """The releases wanted are made."""

    send = grid.push_messages

    def push(messages: Any) -> Any:
        messages = list(messages)
        if messages and messages[0].content["antiphase"]["release"] >= stop:
            raise Stop
        return send(messages)

    grid.push_messages = push  # type: ignore[method-assign]
    with suppress(Stop):
        strategy(plan, directory / "s", goal=GOAL).start(grid, model())
    state = read_state(directory / "s")
    assert state is not None
    assert state.release == stop
    wanted = model_by_hand(directory / "s", directory / "c", plan, GOAL, updates(CLIENTS))
    return max(float(np.abs(a - b).max()) for a, b in zip(state.model.values(), wanted, strict=True))
