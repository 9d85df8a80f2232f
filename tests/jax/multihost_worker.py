"""One of the processes that train a model together, on four devices in all.

    python -m tests.jax.multihost_worker RANK SIZE PORT DIRECTORY SOURCE [STEP TO DIE IN]

Process 0 writes the parameters and a report to DIRECTORY. With SOURCE "by-hand", one process trains without JAX's
optimizer, devices or clipping. With SOURCE "host,device", process 0 uses the first, and process 1 the second.
"""

import os
import sys
from pathlib import Path
from unittest.mock import patch

RANK, SIZE, PORT = (int(argument) for argument in sys.argv[1:4])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={4 // SIZE}"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import antiphase as ap  # noqa: E402
import antiphase.jax as apj  # noqa: E402
from antiphase.strategies import BLT  # noqa: E402

EXAMPLES, STEPS, CLIP, RATE = 40, 6, 0.5, 0.1
RUN_ID = "0123456789abcdef" * 2
RNG = np.random.default_rng(0)
W, S = RNG.normal(size=(8, 6)).astype(np.float32), np.float32(0.5)
X, Y = RNG.normal(size=(EXAMPLES, 8)).astype(np.float32), RNG.normal(size=(EXAMPLES, 6)).astype(np.float32)


def plan():
    often = ap.FixedEpochs(2, 3)
    mechanism = ap.Mechanism(BLT([0.9, 0.5], [0.1, 0.2], STEPS), often, 3.0)
    problem = ap.Problem(
        steps=STEPS, budget=ap.Budget(20.0, 1e-6), examples=EXAMPLES, batch_size=20, participation=often, clip_norm=CLIP
    )
    return ap.Plan(problem, mechanism, ap.epsilon(mechanism, 1e-6), error=1.0)


def loss(params, x, y):
    return jnp.square(jnp.tanh(x @ params["w"]) + params["s"] - y).sum()


def main(directory, source, stop):
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    shardings = {"s": NamedSharding(mesh, P()), "w": NamedSharding(mesh, P("data", "model"))}
    params = {"s": jax.device_put(S, shardings["s"]), "w": jax.device_put(W, shardings["w"])}
    with (
        patch("antiphase._run.opening.fresh_run_id", lambda: RUN_ID),
        apj.open_run(plan(), directory / "run", params, examples=EXAMPLES, secret=ap.Secret.insecure(8)) as run,
    ):
        try:
            noise = apj.add_correlated_noise(run, source.split(",")[RANK if "," in source else 0], shardings=shardings)
        except ap.Refused as error:
            (directory / f"refused-{RANK}").write_text(str(error))
            raise
        if SIZE > 1 and RANK == 0:  # it makes the optimizer again, alone
            noise = apj.add_correlated_noise(run, source, shardings=shardings)
            try:
                apj.add_correlated_noise(run, "device" if source == "host" else "host", shardings=shardings)
            except ap.Refused as error:
                (directory / "other-source").write_text(str(error))
        optimizer = optax.chain(noise, optax.sgd(RATE))
        total = apj.clipped_sum(loss, CLIP)

        @jax.jit
        def step(params, state, data, mask):
            updates, state = optimizer.update(total(params, data, mask), state, params)
            return optax.apply_updates(params, updates), state

        state, checkpoint = jax.jit(optimizer.init)(params), directory / "checkpoint"
        if (directory / "saved").exists():
            params, state = apj.load(checkpoint, (params, state), run)
        first = int(state[0].step)
        for batch in apj.batches(run, (X, Y), multiple=8, start=first, sharding=NamedSharding(mesh, P("data"))):
            params, state = step(params, state, batch.data, batch.mask)
            if batch.step == stop:
                os._exit(9)
            apj.commit(run, state, params, batch.indices)
            if batch.step == 1:
                apj.save(checkpoint, (params, state), run)
                multihost_utils.sync_global_devices("saved")
                (directory / "saved").touch()
        # What one process must not do leaves no other waiting for it.
        wrong = batch.indices[1:] if jax.process_index() == SIZE - 1 else batch.indices
        try:
            apj.commit(run, state, params, wrong)
        except ap.Refused as error:
            (directory / f"refused-{RANK}").write_text(str(error))
        run.publish("the parameters")
        whole = {
            name: np.asarray(multihost_utils.process_allgather(array, tiled=True)) for name, array in params.items()
        }
        if RANK == 0:
            np.savez(directory / "params.npz", **whole)
            report = apj.report(run, state)
            (directory / "report").write_text(f"{report.steps_run} {report.rewinds} {report.guarantee.value}")


def by_hand(directory):
    """Train one example at a time in float64, with the noise that the run itself gives out."""
    params = {"s": np.float64(S), "w": W.astype(np.float64)}
    leaves = apj.leaves({"s": S, "w": W})
    with patch("antiphase._run.opening.fresh_run_id", lambda: RUN_ID):
        run = ap.Run.open(plan(), directory / "run", leaves=leaves, examples=EXAMPLES, secret=ap.Secret.insecure(8))
    for t in range(STEPS):
        total = {name: np.zeros_like(value) for name, value in params.items()}
        batch = run.batch(t)
        for i in batch.indices[batch.mask]:
            single = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
            g = {name: np.asarray(value, np.float64) for name, value in jax.grad(loss)(single, X[i], Y[i]).items()}
            factor = min(1.0, CLIP / np.sqrt(sum(np.square(value).sum() for value in g.values())))
            total = {name: total[name] + factor * g[name] for name in g}
        for name, noise in zip(total, run.gradient_noise(t), strict=True):
            params[name] = params[name] - RATE * (total[name] + noise)
        run.commit(t, bytes(32))
    np.savez(directory / "params.npz", **params)


if __name__ == "__main__":
    if SIZE > 1:
        jax.distributed.initialize(f"127.0.0.1:{PORT}", num_processes=SIZE, process_id=RANK)
    if sys.argv[5] == "by-hand":
        by_hand(Path(sys.argv[4]))
    else:
        main(Path(sys.argv[4]), sys.argv[5], int(sys.argv[6]) if len(sys.argv) > 6 else -1)
