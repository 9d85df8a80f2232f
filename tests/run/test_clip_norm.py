"""The noise of a run is scaled by the clipping norm of its problem."""

from dataclasses import replace

import numpy as np
import pytest

import antiphase as ap
from tests.run.plans import STRATEGIES, plan_for

SECRET = ap.Secret.insecure(4)


def clipped_plan(clip_norm, name="toeplitz"):
    plan = plan_for(STRATEGIES[name])
    return replace(plan, problem=replace(plan.problem, clip_norm=clip_norm))


@pytest.mark.parametrize("clip_norm", [0.25, 1.0, 3.3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_noise_is_multiplied_by_the_clipping_norm(tmp_path, clip_norm, dtype):
    plan = clipped_plan(clip_norm)
    leaves = [(300,), (), (2, 3)]
    with ap.Run.open(plan, tmp_path, leaves=leaves, examples=40, secret=SECRET, dtype=dtype) as run:
        stream = ap.NoiseStream(plan, leaves, SECRET, run.run_id, dtype=dtype)
        for step in range(4):
            run.batch(step)
            noise, unit = run.gradient_noise(step), stream.next()
            for ours, theirs in zip(noise, unit, strict=True):
                assert ours.dtype == dtype
                assert ours.shape == theirs.shape
                np.testing.assert_array_equal(ours, (theirs.astype(np.float64) * clip_norm).astype(dtype))
            for ours, again in zip(noise, run.gradient_noise(step), strict=True):
                np.testing.assert_array_equal(ours, again)  # the kept noise was not multiplied in place
            run.commit(step, ap.digest(noise))


def test_noise_has_the_standard_deviation_of_the_clipping_norm(tmp_path):
    plan = clipped_plan(10.0, "identity")
    with ap.Run.open(plan, tmp_path, leaves=[(100_000,)], examples=40, secret=SECRET) as run:
        deviation = run.gradient_noise(0)[0].astype(np.float64).std()
    assert deviation == pytest.approx(10.0 * plan.mechanism.noise_std, rel=0.02)


@pytest.mark.parametrize("clip_norm", [1e-35, 1e35])
def test_a_clipping_norm_that_makes_the_noise_underflow_or_overflow_is_refused(tmp_path, clip_norm):
    with pytest.raises(ap.Refused, match=r"float32: .*clip"):
        ap.Run.open(clipped_plan(clip_norm), tmp_path / "run", leaves=[(3,)], examples=40)
    assert not (tmp_path / "run").exists()
    ap.Run.open(clipped_plan(clip_norm), tmp_path / "run", leaves=[(3,)], examples=40, dtype="float64").close()


def test_the_old_name_fails_with_a_hint(tmp_path):
    with ap.Run.open(clipped_plan(2.0), tmp_path, leaves=[(3,)], examples=40) as run:
        with pytest.raises(ap.Refused, match=r"gradient_noise.*already multiplied"):
            run.noise(0)
        assert not hasattr(run, "noise")
        assert "noise" not in dir(run)
        with pytest.raises(AttributeError, match="no attribute 'nose'"):
            run.nose  # noqa: B018
