"""Cases in which a guarantee once came out too strong."""

import math
from dataclasses import replace

import pytest

import antiphase as ap
from antiphase.strategies import Dense, Identity, Toeplitz


@pytest.mark.parametrize("scale", [1e-162, 2.6e-162, 1e160])
def test_squares_that_underflow_or_overflow_are_refused(scale):
    for strategy in (Dense([[scale, 0.0], [scale, scale]]), Toeplitz([scale], 4)):
        with pytest.raises(ap.InvalidArgument, match="divide C by its norm"):
            ap.sensitivity(strategy, ap.SingleParticipation())


@pytest.mark.parametrize("size", [2, 5])
def test_a_group_makes_room_for_itself_in_a_truncated_batch(size):
    """The lemma walks over data sets with up to `size` more examples, each of which may overflow the batch."""
    mechanism = ap.Mechanism(Identity(1), ap.Poisson(0.5, max_batch=3), 2.0, "add-or-remove", examples=3)
    larger = replace(mechanism, examples=3 + size - 1)
    found = ap.group_epsilon(mechanism, size, 1e-5).value
    release = larger.reduction.release(larger.noise_std)
    e = found / size
    growth = math.log(math.expm1(size * e)) - math.log(math.expm1(e))
    assert math.log(release.delta(e)) + growth <= math.log(1e-5) + 1e-6
