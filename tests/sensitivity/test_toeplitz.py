"""Toeplitz strategies: the earliest pattern where it is proved, and not where it is not."""

import numpy as np
import pytest

from antiphase import EveryStep, FixedEpochs, MinSeparation, NotProved, ShuffledEpochs, SingleParticipation
from antiphase._sensitivity import sensitivity
from antiphase.strategies import BLT, BandedInverse, Toeplitz
from antiphase.strategies import _toeplitz_gram as toeplitz
from tests.sensitivity.oracle import squared_sensitivity

# McMahan, Xu and Zhang 2024, App. F: (decay, scale) by the separation they were made for.
PRODUCTION = {
    100: (
        [0.989739971007307, 0.7352001759538236, 0.16776199983448145, 0.1677619998016191],
        [0.20502892852480875, 0.23357939425278557, 0.03479503245420878, 0.03479509876050538],
    ),
    400: (
        [0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778],
        [0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734],
    ),
    1000: (
        [0.99999999999983397, 0.9973412136664378, 0.9584629472313878, 0.6581796870749317],
        [0.008657392263671862, 0.05890891298180163, 0.14548176930698697, 0.2770117005326523],
    ),
}
# Their Table 2: rounds, noise multiplier, separation, participations, zCDP; and which parameters.
TABLE_2 = [
    (1280, 7.379, 300, 4, 0.16, 400),
    (2350, 7.379, 447, 5, 0.20, 400),
    (2000, 8.681, 2001, 1, 2.23e-2, 1000),
    (2000, 16.1, 1181, 2, 1.40e-2, 1000),
    (430, 3.12, 92, 4, 1.11, 100),
    (320, 5.5, 49, 6, 0.75, 100),
]


def column_sum_square(strategy, b, k):
    """||C 1||^2 on 0, b, ..., with c written out."""
    c = [1.0] + [float(np.dot(strategy.scale, strategy.decay**i)) for i in range(strategy.steps - 1)]
    total = np.zeros(strategy.steps)
    for m in range(k):
        total[m * b :] += c[: strategy.steps - m * b]
    return total @ total


@pytest.mark.parametrize(("rounds", "sigma", "b", "k", "zcdp", "made_for"), TABLE_2)
def test_production_models(rounds, sigma, b, k, zcdp, made_for):
    strategy = BLT(*PRODUCTION[made_for], rounds)
    bound = sensitivity(strategy, MinSeparation(b, k))
    assert (bound.kind, bound.method) == ("exact", "earliest")
    assert bound.value**2 / (2 * sigma**2) == pytest.approx(zcdp, rel=0.05)
    assert bound.value**2 == pytest.approx(column_sum_square(strategy, b, k), rel=5e-12)


def test_one_pass_over_a_blt_keeps_its_digits():
    """A geometric column: sums of squares in closed form, one participation in a million steps."""
    n, theta, omega = 10**6, 1 - 1e-7, 0.25
    truth = 1 + omega**2 * -np.expm1(2 * (n - 1) * np.log(theta)) / -np.expm1(2 * np.log(theta))
    assert sensitivity(BLT([theta], [omega], n), SingleParticipation()).value ** 2 == pytest.approx(truth, rel=1e-11)


def test_one_pass_with_decay_one():
    """c = 1, 1/2, 1/2, ...: with two participations b apart the column sum is 1, 1/2, ..., 3/2, 1, 1, ..."""
    n, b = 20_000, 7_000
    truth = 1 + (b - 1) / 4 + 1.5**2 + (n - b - 1)
    bound = sensitivity(BLT([1.0], [0.5], n), MinSeparation(b, 2))
    assert bound.kind == "exact"
    assert bound.value**2 == pytest.approx(truth, rel=1e-11)


def test_a_blt_of_a_hundred_million_steps_needs_no_column(monkeypatch):
    monkeypatch.setattr(toeplitz, "LARGEST_COLUMN", 10)
    strategy = BLT([0.999, 0.5], [0.1, 0.2], 3_000)
    for participation in (MinSeparation(100, 20), FixedEpochs(30, 100), EveryStep(), SingleParticipation()):
        assert sensitivity(strategy, participation).kind == "exact"
    signed = BLT([0.9], [-0.5], 3_000)
    for participation in (MinSeparation(100, 20), FixedEpochs(30, 100), EveryStep()):
        assert sensitivity(signed, participation).kind == "upper"
    assert sensitivity(signed, SingleParticipation()).kind == "exact"
    with pytest.raises(NotProved, match="hold in memory"):
        sensitivity(strategy, ShuffledEpochs(30, 100))


def test_first_coefficient_smaller_than_the_second():
    """sum(scale) > 1: c_0 = 1 < c_1, so the theorem does not apply; the bound covers brute force."""
    strategy, participation = BLT([0.5], [1.6], 8), MinSeparation(3, 3)
    bound = sensitivity(strategy, participation)
    truth = squared_sensitivity(strategy, participation)
    assert bound.value**2 >= truth.low * (1 - 1e-12)
    with pytest.raises(NotProved, match="non-increasing"):
        sensitivity(strategy, participation, "earliest")


def test_scales_of_both_signs_with_a_decreasing_column():
    strategy = BLT([0.9, 0.3], [0.5, -0.05], 12)
    assert (np.diff(strategy.coefficients()) <= 0).all()
    bound = sensitivity(strategy, MinSeparation(2, 4))
    assert (bound.kind, bound.method) == ("exact", "earliest")
    assert bound.value**2 == pytest.approx(squared_sensitivity(strategy, MinSeparation(2, 4)).low, rel=1e-9)


def test_theorems_for_toeplitz_are_not_applied_to_scaled_columns():
    """The last columns are scaled up, so a later pattern is worse than the earliest one."""
    scaled, participation = Toeplitz([1.0, 1.0], 8, column_normalized=True), MinSeparation(1, 2)
    earliest = np.sum(scaled.encoder()[:, [0, 1]].sum(axis=1) ** 2)
    bound = sensitivity(scaled, participation)
    assert earliest == pytest.approx(3)
    assert bound.kind == "exact"
    assert bound.value**2 == pytest.approx(2 + np.sqrt(2))
    with pytest.raises(NotProved, match="C is not Toeplitz"):
        sensitivity(scaled, participation, "earliest")


def test_rising_coefficients_make_a_later_pattern_worse():
    strategy, participation = Toeplitz([0.3, 1.0, 0.2, 0.9], 10), MinSeparation(2, 3)
    truth = squared_sensitivity(strategy, participation)
    earliest = np.sum(strategy.encoder()[:, [0, 2, 4]].sum(axis=1) ** 2)
    bound = sensitivity(strategy, participation)
    assert bound.value**2 >= truth.low * (1 - 1e-9)
    assert truth.low >= earliest
    with pytest.raises(NotProved, match="non-increasing"):
        sensitivity(strategy, participation, "earliest")


def test_separation_is_the_difference_of_steps():
    """With bands = b, columns b apart do not overlap and columns b - 1 apart do."""
    strategy = Toeplitz([1.0, 1.0, 1.0], 30)
    assert sensitivity(strategy, MinSeparation(3, 2)).value ** 2 == pytest.approx(6)
    assert sensitivity(strategy, MinSeparation(2, 2)).value ** 2 == pytest.approx(8)


def test_participations_are_rounded_up():
    """7 steps, 3 apart: steps 0, 3 and 6, not floor(7 / 3) = 2 of them."""
    assert sensitivity(Toeplitz([1.0], 7), MinSeparation(3)).value ** 2 == pytest.approx(3)


@pytest.mark.parametrize("steps", [50, 3000])
def test_banded_inverse_square_root(steps):
    """Non-negative and decreasing, with the last entries near rounding."""
    strategy = BandedInverse.square_root(5, steps)
    bound = sensitivity(strategy, MinSeparation(7, 5))
    c = strategy.strategy_coefficients()
    total = sum(np.concatenate([np.zeros(7 * m), c[: steps - 7 * m]]) for m in range(5))
    assert (bound.kind, bound.method) == ("exact", "earliest")
    assert bound.value**2 == pytest.approx(total @ total, rel=1e-11)


def test_signs_that_only_rounding_gives_do_not_spoil_exactness():
    c = 0.5 ** np.arange(40)
    c[30:] *= -1  # 1e-9 of the first and less
    bound = sensitivity(Toeplitz(c, 60), MinSeparation(5, 4))
    assert bound.kind == "exact"
    assert bound.value >= np.linalg.norm(Toeplitz(np.abs(c), 60).encoder()[:, :20:5].sum(axis=1)) * (1 - 1e-15)


def test_fixed_epochs_with_signs_equal_the_program_on_the_first_pattern():
    strategy = Toeplitz([1.0, -0.8, 0.6, -0.5, 0.4, 0.3], 24)
    truth = squared_sensitivity(strategy, FixedEpochs(12, 2))
    bound = sensitivity(strategy, FixedEpochs(12, 2))
    assert bound.kind == "exact"
    assert bound.value**2 == pytest.approx(truth.low, rel=1e-7)
