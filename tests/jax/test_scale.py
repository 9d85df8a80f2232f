"""Noise through JAX is the plan's at every scale of C and noise_std, or refused before the first step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antiphase as ap
import antiphase.jax as apj
from antiphase.jax import _correlator, _device_noise, _transformation
from antiphase.strategies import Banded, Dense, Identity, Toeplitz
from tests.catalog import NOT_CAUSAL, every_strategy
from tests.jax.plans import CLIP, added, is_right, plan_for, run_for
from tests.scales import SCALES, STD, departure, has_scale, scaled

STEPS, ENTRIES = 12, 40
FLOAT32 = np.dtype(np.float32)
STRATEGIES = {name: s for name, s in every_strategy(STEPS) if not name.startswith(NOT_CAUSAL)}
SCALABLE = [name for name, strategy in STRATEGIES.items() if has_scale(strategy)]
QUICK = ("toeplitz", "toeplitz-normalized", "banded-signed", "banded-inverse", "stamped-2-dense")
CASES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SCALABLE]
PARAMS = {"w": jnp.zeros(ENTRIES)}
Z = np.random.default_rng(4).standard_normal((4 * STEPS, ENTRIES)).astype(np.float32)


def simulated(plan, monkeypatch):
    """What a compiled update adds to gradients of zero for a known z, a row a step."""

    def known(key, leaves, leaf, row, like, dtype):
        return jnp.asarray(Z, dtype)[row]

    monkeypatch.setattr(_transformation, "standard_normals", known)
    optimizer = apj.simulate_noise(plan, jax.random.key(0))

    def step(state, _):
        updates, state = optimizer.update({"w": jnp.zeros(ENTRIES)}, state)
        return state, updates["w"]

    run = jax.jit(lambda: jax.lax.scan(step, optimizer.init(PARAMS), None, plan.steps)[1])
    return np.asarray(run(), np.float64)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scale", [1e60, *(pytest.param(s, marks=pytest.mark.slow) for s in SCALES if s != 1e60)])
def test_scaling_c_and_noise_together_changes_nothing(name, scale, monkeypatch):
    strategy = STRATEGIES[name]
    given = scaled(strategy, scale)
    if not 1e-135 < scale < 1e135:
        with pytest.raises(ap.InvalidArgument, match="floating-point range"):  # squared norms underflow or overflow
            plan_for(*given)
        return
    noise = simulated(plan_for(*given), monkeypatch)
    assert departure(noise / CLIP, strategy, Z[: strategy.rows]) < 1e-5


@pytest.mark.parametrize("spread", [3, 12, 20, 35, 150])
def test_columns_of_different_scales_are_right_or_refused(spread, monkeypatch):
    base, rng = STRATEGIES["banded"], np.random.default_rng(spread)
    sizes = 10.0 ** (spread * rng.uniform(-1, 1, size=STEPS))
    strategy = Banded(base.columns * sizes[:, None])
    try:
        noise = simulated(plan_for(strategy, STD), monkeypatch)
    except ap.Refused:
        assert spread > 12
        return
    assert departure(noise * sizes[:, None] / CLIP, base, Z[:STEPS]) < 1e-4
    assert spread < 35


@pytest.mark.parametrize("source", ["host", "device"])
def test_the_plan_that_had_no_noise_at_all_has_its_covariance(source, tmp_path):
    base, params = Toeplitz.square_root(8, bands=4), {"w": jnp.zeros(500)}
    plan = plan_for(*scaled(base, 1e50))
    with run_for(plan, tmp_path, params) as run:
        noise = added(apj.add_correlated_noise(run, source), run, params)
    assert is_right(noise, plan_for(base, STD))


@pytest.mark.parametrize("source", ["host", "device"])
@pytest.mark.parametrize(
    "strategy",
    [
        Toeplitz([1.0, 2.0], 40),
        Dense(np.diag(np.logspace(-40, 40, 9))),
        Banded(Toeplitz([1.0, 0.5], 9).columns() * np.logspace(-40, 40, 9)[:, None]),
    ],
)
def test_what_float32_cannot_hold_is_refused_before_the_run_is_bound(strategy, source, tmp_path):
    """The run makes float64 noise; JAX, without jax_enable_x64, float32."""
    with run_for(plan_for(strategy), tmp_path, PARAMS, dtype="float64") as run:
        with pytest.raises(ap.Refused, match="float32"):
            apj.add_correlated_noise(run, source)
        run._unit_noise(0)  # still the host's


def test_a_compiled_program_that_makes_other_noise_is_refused(monkeypatch):
    class Late(_correlator.JaxCorrelator):
        buffer_count = 1

        def step(self, buffers, step, draw):
            return buffers[0], buffers.at[0].set(draw(step))

    case = (Identity(9), STD, FLOAT32, 1.0)
    _device_noise.check_device_noise.__wrapped__(*case)
    monkeypatch.setattr(_device_noise, "correlator", lambda strategy, dtype: Late())
    with pytest.raises(ap.Refused, match="differs from the float64 reference"):
        _device_noise.check_device_noise.__wrapped__(*case)


def test_plans_are_simulated_inside_a_traced_program():
    plan = plan_for(Toeplitz([1.0, 0.375], 5))

    def first(key):
        optimizer = apj.simulate_noise(plan, key)
        return optimizer.update(PARAMS, optimizer.init(PARAMS))[0]["w"]

    _device_noise.check_device_noise.cache_clear()
    assert bool(jax.jit(first)(jax.random.key(1)).any())


def test_half_precision_is_refused():
    with pytest.raises(ap.InvalidArgument, match="float32 or float64"):
        apj.simulate_noise(plan_for(Identity(4)), jax.random.key(0), dtype=jnp.bfloat16)
