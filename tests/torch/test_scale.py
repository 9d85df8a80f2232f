"""Noise in PyTorch is correct for C, noise_std and clipping norms of any size, or it is refused before step 0."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import antiphase as ap
from antiphase.strategies import BLT, Banded, Identity, Toeplitz
from antiphase.torch import NoiseAdder
from antiphase.torch import _device as device
from tests.catalog import every_strategy
from tests.scales import SCALES, STD, departure, has_scale, scaled
from tests.torch.training import SECRET

STEPS, ENTRIES = 12, 50
STRATEGIES = {name: s for name, s in every_strategy(STEPS) if s.recursion().is_causal}  # the device supports these
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
SLOW_SCALES = [pytest.param(scale, marks=pytest.mark.slow) for scale in SCALES if scale not in (1e-300, 1e60)]
DTYPES = [torch.float32, torch.float64]


def plan_for(strategy, noise_std, clip_norm=1.0):
    mechanism = ap.Mechanism(strategy, ap.MinSeparation(4), noise_std)
    problem = ap.Problem(
        steps=strategy.steps, budget=ap.Budget(8.0, 1e-6), participation=ap.MinSeparation(4), clip_norm=clip_norm
    )
    guarantee = ap.epsilon(mechanism, 1e-6)
    return ap.Plan(problem, mechanism, guarantee, error=1.0, deviation="hardly any noise, for a test")


def white_rows(monkeypatch, dtype):
    """Replace the generator of the device by a known z, and return z."""
    z = np.random.default_rng(4).standard_normal((STEPS, ENTRIES)).astype(np.float32)
    monkeypatch.setattr(
        device.SeededNormals, "draw", lambda self, row, name, leaf: torch.as_tensor(z[row], dtype=dtype)
    )
    return z.astype(np.float64)


def added(plan, directory, dtype, source):
    """Return what a `NoiseAdder` adds to gradients of zero, one row per step."""
    weight, rows = torch.zeros(ENTRIES, dtype=dtype), []
    with NoiseAdder([weight], plan, directory, secret=SECRET, source=source) as noise:
        for _ in range(plan.steps):
            weight.grad = torch.zeros_like(weight)
            noise.add()
            rows.append(weight.grad.double().numpy().copy())
            noise.commit()
    return np.stack(rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-300, 1e60, *SLOW_SCALES])
def test_scaling_c_and_noise_together_changes_nothing(scale, dtype, tmp_path, monkeypatch):
    z = white_rows(monkeypatch, dtype)
    for name, strategy in STRATEGIES.items():
        if has_scale(strategy):
            try:
                plan = plan_for(*scaled(strategy, scale))
            except ap.InvalidArgument:  # squares overflow or underflow, so nobody can account for it
                assert not 1e-140 < scale < 1e140, name
                continue
            noise = added(plan, tmp_path / name, dtype, "device")
            assert departure(noise, strategy, z) < TOLERANCE[dtype], name


@pytest.mark.parametrize("source", ["host", "device"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("noise_std", "clip_norm"),
    [(STD, 1e-40), (STD, 1e40), (1e-25, 1e-10), (1e-40, 1e40), (1e40, 1e-40), (1e25, 1e10), (STD, 1e-200), (1e-20, 1)],
)
def test_noise_times_clipping_norm_is_right_or_refused(noise_std, clip_norm, dtype, source, tmp_path, monkeypatch):
    """In float32 all but the last are refused, before there is a run; float64 holds them all."""
    z = white_rows(monkeypatch, dtype)
    strategy = Toeplitz([1.0, 0.5, 0.2], STEPS)
    plan = plan_for(strategy, noise_std, clip_norm)
    if dtype == torch.float32 and clip_norm != 1:
        with pytest.raises(ap.Refused, match="float32"):
            added(plan, tmp_path / "run", dtype, source)
        assert not (tmp_path / "run").exists()
        return
    noise = added(plan, tmp_path / "run", dtype, source) / clip_norm / noise_std
    if source == "device":
        assert departure(noise, strategy, z, 1.0) < TOLERANCE[dtype]
    else:
        whitened = strategy.multiply(noise)
        assert abs(np.square(whitened).mean() - 1.0) < 5.0 * np.sqrt(2.0 / whitened.size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_of_different_scales_are_right_or_refused(dtype, tmp_path, monkeypatch):
    z, base = white_rows(monkeypatch, dtype), STRATEGIES["banded"]
    rng, outcomes = np.random.default_rng(5), []
    for trial, spread in enumerate([3, 12, 20, 35, 60, 150]):
        sizes = 10.0 ** (spread * rng.uniform(-1, 1, size=STEPS))
        plan = plan_for(Banded(base.columns * sizes[:, None]), STD)
        try:
            noise = added(plan, tmp_path / str(trial), dtype, "device")
        except ap.Refused:
            outcomes.append(False)
            continue
        outcomes.append(True)
        assert departure(noise * sizes[:, None], base, z) < 10 * TOLERANCE[dtype]
    assert outcomes[:2] == [True, True]
    assert outcomes[-1] == (dtype == torch.float64)


def test_a_blt_that_cancels_needs_float64(tmp_path):
    plan = plan_for(BLT([0.9, 0.8999], [20.0, -20.0], STEPS), STD)
    with pytest.raises(ap.InvalidArgument, match="scales cancel"):
        added(plan, tmp_path / "run", torch.float32, "device")
    added(plan, tmp_path / "run", torch.float64, "device")


def test_the_source_of_a_blt_says_that_its_bits_are_new():
    like = torch.empty(0)
    sources = [
        device.DeviceReplay(plan_for(strategy, STD), SECRET, "run", {}, like).source
        for strategy in (STRATEGIES["blt"], STRATEGIES["toeplitz"])
    ]
    assert sources[0] == sources[1] + ", buffers updated by differences"


def test_a_decay_next_to_one_is_not_rounded():
    """float32 has no 1 - 3e-8. With b <- decay b + y the noise is off by 4e-6 here, with differences by 3e-7."""
    strategy = BLT.from_decays([1.0 - 3e-8], [0.9999], 20_000)
    z = np.random.default_rng(1).standard_normal((strategy.steps, 4)).astype(np.float32)
    single, double = device.correlator(strategy, "float32"), device.correlator(strategy, "float64")
    worst = 0.0
    for step, row in enumerate(torch.tensor(z)):
        low, high = single(step, lambda _, row=row: row), double(step, lambda _, row=row: row.double())
        worst = max(worst, float((low.double() - high).abs().max()))
    assert worst < 1e-6


def test_a_plan_is_replaced_and_tried_again_in_the_same_directory(tmp_path):
    """A refused plan must not leave a directory that its successor does not fit."""
    plan = plan_for(Identity(STEPS), STD, 1e-40)
    with pytest.raises(ap.Refused):
        added(plan, tmp_path / "run", torch.float32, "host")
    again = replace(plan, problem=replace(plan.problem, clip_norm=1.0))
    assert added(again, tmp_path / "run", torch.float32, "host").any()
