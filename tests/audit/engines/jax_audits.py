"""What audits of the JAX integration share: a small regression, and one call for one audit."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import antiphase as ap
import antiphase.audit.jax as driver
from antiphase.audit import evaluate
from tests.audit.engines.models import CANARIES, EXAMPLES, QUIET, plan

RNG = np.random.default_rng(5)
DATA = (RNG.normal(size=(EXAMPLES, 4)).astype(np.float32), RNG.normal(size=(EXAMPLES, 2)).astype(np.float32))
PARAMS = {"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)}


def loss(params, x, y):
    return jnp.square(x @ params["w"] + params["b"] - y).mean()


def mesh():
    return jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Auto,))


def released(directory, given=None, seed=1, **options):
    options = {"canaries": CANARIES, "quiet": QUIET, "secret": ap.Secret.insecure(seed), **options}
    return driver.drive(plan() if given is None else given, directory, loss, PARAMS, DATA, **options)


def audit(directory, given=None, seed=1, **options):
    given = plan() if given is None else given
    return evaluate(given, released(directory, given, seed, **options))
