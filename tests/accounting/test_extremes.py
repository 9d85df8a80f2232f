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


@pytest.mark.parametrize(
    ("steps", "rate", "noise", "epsilon", "at_least"),
    # Every step holds the example but with 1 - rate, and its loss then exceeds epsilon / steps almost surely.
    [
        (6, 1 - 5.4267e-4, 1 / 1164.35, 326550.6, 1 - 1e-12),
        (2, 1 - 7.6e-4, 1 / 1587, 1000.0, 1 - 6e-7),
        (3, 0.999, 1 / 370, 100.0, 1 - 1e-8),
    ],
)
def test_a_lump_of_losses_below_the_tilted_ones_counts(steps, rate, noise, epsilon, at_least):
    found = ap.delta(ap.Mechanism(ap.strategies.Identity(steps), ap.Poisson(rate), noise), epsilon)
    assert found.value >= at_least


def test_two_lumps_against_quadrature():
    from antiphase._accounting import _loss_accountant as accountant

    parts = [accountant.Part(200.0, 0.9999, 1), accountant.Part(6.0, 1.0, 1)]
    assert 0.99993585 <= accountant.delta(parts, 10.0) <= 0.99999  # 0.999935856 by quadrature with 40 digits


def test_very_small_noise_and_rates_have_an_answer():
    def mechanism(rate, noise):
        return ap.Mechanism(ap.strategies.Identity(10), ap.Poisson(rate), noise)

    # Ten steps without sampling are a mu = sqrt(10) / noise Gaussian, of which half the steps are left at best.
    assert ap.epsilon(mechanism(0.5, 0.0025), 1e-6).value > 5 * 0.5 / 0.0025**2
    assert ap.epsilon(mechanism(1e-300, 1.0), 1e-6).value < 1e-9
    assert ap.delta(mechanism(1e-12, 1.0), 200.0).value > 0.0


@pytest.mark.parametrize("given", [ap.BallsInBins(1, 1, max_batch=1), ap.PoissonMinSeparation(1, 1.0, max_batch=1)])
def test_an_example_that_pushes_another_out_is_not_one_gaussian(given):
    """{y} against {y, x} with x = -y in one full batch: N(0) against half N(0), half N(2); delta at 4.9 is 8.4e-3."""
    mechanism = ap.Mechanism(ap.strategies.Identity(1), given, 1.0, adjacency="add-or-remove", examples=2)
    for question in (
        lambda: ap.compose([mechanism], 1e-6),
        lambda: ap.zcdp(mechanism),
        lambda: ap.gdp(mechanism),
        lambda: ap.group_epsilon(mechanism, 2, 1e-6),
        lambda: ap.epsilon(mechanism, 1e-6),
        mechanism.dp_event,
    ):
        with pytest.raises(ap.NotProved):
            question()
    assert ap.delta(mechanism, 4.8866).value >= 8.4e-3
