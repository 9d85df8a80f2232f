"""Starting from the optimum for half as many steps finds the same dense optimum in fewer iterations."""

import numpy as np
import pytest

import antiphase as ap
from antiphase._optimize.dense import warm_start
from antiphase._optimize.dense.residue_blocks import ResidueClasses, flatten


@pytest.mark.integration
@pytest.mark.parametrize("equal_norms", [False, True])
@pytest.mark.parametrize(
    "participation", [ap.FixedEpochs(4, 80), ap.FixedEpochs(3, 120), ap.SingleParticipation()], ids=str
)
def test_the_optimum_is_the_same_and_found_sooner(participation, equal_norms, monkeypatch):
    """320 steps; 3 x 120 leaves the last epoch short."""

    def solve():
        return ap.optimize("dense", steps=320, participation=participation, equal_norms=equal_norms)

    halved = solve()
    monkeypatch.setattr(warm_start, "MIN_WARM_START_STEPS", 320)
    plain = solve()
    assert halved.iterations < plain.iterations
    assert halved.converged
    assert plain.converged
    # Each loss is above the bound that the other search has proved, and by no more than the tolerance.
    assert plain.lower_bound <= halved.loss <= plain.lower_bound * (1 + 2e-4)
    assert halved.lower_bound <= plain.loss <= halved.lower_bound * (1 + 2e-4)


@pytest.mark.integration
def test_the_largest_error_too(monkeypatch):
    participation = ap.FixedEpochs(4, 80)
    halved = ap.optimize("dense", steps=320, participation=participation, objective="max")
    monkeypatch.setattr(warm_start, "MIN_WARM_START_STEPS", 320)
    plain = ap.optimize("dense", steps=320, participation=participation, objective="max")
    assert plain.lower_bound <= halved.loss <= plain.lower_bound * 1.004


@pytest.mark.parametrize(("steps", "period"), [(12, 4), (10, 4), (6, 6), (8, 2)])
def test_classes_of_half_the_steps_have_the_same_sizes(steps, period):
    sizes = [group.shape for group in ResidueClasses(steps, period).groups]
    half = [group.shape for group in ResidueClasses(steps // 2, period // 2).groups]
    assert sizes == [(2 * classes, size) for classes, size in half]


def test_equal_multipliers_stay_equal():
    coarse = ResidueClasses(10, 4)
    block = flatten([np.full_like(b, 3.0) for b in coarse.identity()])
    fine = warm_start.interpolate(np.concatenate([block, np.full(10, 0.5)]), coarse)
    size = sum(b.size for b in ResidueClasses(20, 8).identity())
    assert (fine[:size] == 3.0).all()
    assert (fine[size:] == 0.5).all()
    assert len(fine) == size + 20
