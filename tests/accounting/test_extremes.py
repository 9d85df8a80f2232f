"""Cases in which a guarantee once came out too strong."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import antiphase as ap
from antiphase.strategies import BLT, Dense, Identity, Toeplitz


@pytest.mark.parametrize("scale", [1e-162, 2.6e-162, 1e160])
def test_squares_that_underflow_or_overflow_are_refused(scale):
    for strategy in (Dense([[scale, 0.0], [scale, scale]]), Toeplitz([scale], 4)):
        with pytest.raises(ap.InvalidArgument, match="divide C by its largest column norm"):
            ap.sensitivity(strategy, ap.SingleParticipation())


@pytest.mark.parametrize("scale", [1e-162, 2.6e-162, 1e160])
def test_they_are_refused_for_samples_and_unit_columns_too(scale):
    """sqrt(c^2) is 2.2e-162 for c = 2.6e-162: epsilon came out as 2.08 where it is 2.85."""
    strategy = Toeplitz([scale], 10)
    for sampling in (ap.Poisson(0.1), ap.CyclicPoisson(2, 0.1)):
        with pytest.raises(ap.InvalidArgument, match="divide C by its largest column norm"):
            ap.epsilon(ap.Mechanism(strategy, sampling, noise_std=scale), 1e-5)
    for first in (scale, 1.0):  # the last column has one entry, the others two
        unit_columns = Toeplitz([scale, first], 10, column_normalized=True)
        with pytest.raises(ap.InvalidArgument, match="divide C by its largest column norm"):
            ap.sensitivity(unit_columns, ap.SingleParticipation())


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_rate_of_few_bits_is_accounted_for_in_full_precision(kind):
    """Arithmetic in float16 gave 2.115 where epsilon is 2.125."""
    rate = kind(0.01)
    for sampling in (ap.Poisson, lambda q: ap.CyclicPoisson(1, q)):
        found, same = (ap.epsilon(ap.Mechanism(Identity(1000), sampling(q), 1.0), 1e-6) for q in (rate, float(rate)))
        assert found == same
    assert type(ap.PoissonMinSeparation(2, rate).rate) is float


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint64])
def test_counts_of_few_bits_do_not_wrap_around(kind):
    """127 examples and one more are 128, not -128; and 255 are 256, not 0."""
    examples = kind(min(np.iinfo(kind).max, 255))
    strategy, batch = Identity(3), kind(100)
    for sampling in (ap.Poisson(0.5, max_batch=batch), ap.CyclicPoisson(kind(1), 0.5, max_batch=batch)):
        found = ap.Mechanism(strategy, sampling, 1.0, "add-or-remove", examples=examples)
        same = ap.Mechanism(strategy, replace(sampling, max_batch=100), 1.0, "add-or-remove", examples=int(examples))
        assert ap.delta(found, 1.0) == ap.delta(same, 1.0)
    c = Toeplitz([1.0, 0.5, 0.25], 120)
    for made in (
        lambda k: ap.FixedEpochs(k(12), k(10)),
        lambda k: ap.ShuffledEpochs(k(12), k(10)),
        lambda k: ap.MinSeparation(k(10), k(20)),
        lambda k: ap.BallsInBins(k(12), k(10)),
        lambda k: ap.FixedSize(k(10), k(3)),
        lambda k: ap.PoissonMinSeparation(k(10), 0.5),
    ):
        assert ap.sensitivity(c, made(kind)) == ap.sensitivity(c, made(int))


@pytest.mark.parametrize("smallest", [1e-8, 1e-10, 3e-15, 9.5e-16])
def test_a_matrix_whose_noise_rounding_would_take_away_is_refused(smallest):
    """At 3e-15 of the largest singular value the noise was 1 % too small, at 9.5e-16 none was left in one direction."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(2))
    matrix = left @ np.diag([1.0, 1.0, smallest]) @ right
    if smallest < 1e-9:
        with pytest.raises(ap.InvalidArgument, match="full column rank"):
            Dense(matrix)
        return
    strategy = Dense(matrix)
    noise = np.linalg.svd(strategy.noising(), compute_uv=False)
    assert noise[-1] == pytest.approx(1.0, rel=1e-6)
    assert noise[0] == pytest.approx(1.0 / smallest, rel=1e-6)


def test_a_run_of_nearly_dependent_columns_that_stops_is_charged_in_full():
    full = ap.Mechanism(ap.strategies.BandedInverse([1.0, 2.0], 60), ap.SingleParticipation(), noise_std=1e18)
    assert full.first(59).effective_noise_multiplier == full.effective_noise_multiplier


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
    from antiphase._accounting import loss_accountant as accountant

    parts = [accountant.GaussianSteps(200.0, 0.9999, 1), accountant.GaussianSteps(6.0, 1.0, 1)]
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


def test_the_smallest_deltas_that_are_accounted_for():
    promised = ap.Mechanism(ap.strategies.Toeplitz([1.0, 0.5], 12), ap.FixedEpochs(3, 4), 3.0)
    sampled = replace(promised, participation=ap.BallsInBins(3, 4))
    assert ap.epsilon(promised, 1e-300).value > ap.epsilon(promised, 1e-200).value
    quick = ap.MonteCarlo(slack=0.5, samples=1 << 12)
    assert ap.epsilon(sampled, 1e-200, quick).value <= ap.epsilon(promised, 1e-200).value * (1 + 1e-6)
    with pytest.raises(ap.InvalidArgument, match="delta"):
        ap.epsilon(sampled, 1e-201)


def test_more_steps_than_any_grid_can_add_up_promise_nothing():
    """The rounding of 10^12 losses widens their sum more than a coarser grid saves: no bound, and no error either."""
    mechanism = ap.Mechanism(Identity(10**12), ap.Poisson(1e-7), 2.0)
    assert ap.epsilon(mechanism, 1e-6).value == math.inf
    assert ap.delta(mechanism, 1.0).value == 1.0


@pytest.mark.parametrize("participation", [ap.SingleParticipation(), ap.MinSeparation(10**6)])
def test_a_blt_too_long_for_one_pass_is_refused(participation):
    with pytest.raises(ap.NotProved, match="too long"):
        ap.sensitivity(BLT([0.9], [0.2], 2**50), participation)


def test_no_blt_is_searched_for_that_could_not_be_measured():
    problem = ap.Problem(steps=10**12, budget=ap.Budget(1.0, 1e-6), participation=ap.MinSeparation(10**6))
    with pytest.raises(ap.NotProved, match="too long"):
        ap.plan(problem, families=["blt"])


def one_step(noise_std):
    return ap.Mechanism(Identity(1), ap.SingleParticipation(), noise_std)


EXTREMES = [5e-324, 1e-310, 1e-200, 1e-162, 1e-155, 1e155, 1e160, 3e161, 1e163, 1e200, 1e300, 1.7e308]


def test_noise_whose_square_underflows_composes_as_its_sum():
    """The squares of 1e163 vanished beside that of 1e161: epsilon came out as 0.29 of the truth."""
    found = ap.compose([one_step(1e161)] + [one_step(1e163)] * 100_000, 1e-170).value
    truth = ap.epsilon(one_step(1e161 / math.sqrt(11.0)), 1e-170).value
    assert truth * (1.0 - 1e-13) <= found <= truth * (1.0 + 1e-12)


@pytest.mark.parametrize("noise_std", EXTREMES)
def test_one_mechanism_composes_to_itself_at_any_noise(noise_std):
    for target in (1e-6, 1e-300):
        alone = ap.epsilon(one_step(noise_std), target).value
        assert alone <= ap.compose([one_step(noise_std)], target).value <= alone * (1.0 + 1e-12)
        assert ap.compose([one_step(noise_std), one_step(1.0)], target).value >= alone


@pytest.mark.parametrize("noise_std", EXTREMES)
def test_zcdp_and_groups_round_up_at_any_noise(noise_std):
    rho = ap.zcdp(one_step(noise_std)).value
    truth = 1 / (2 * Fraction(noise_std) ** 2)
    assert rho == math.inf or Fraction(rho) >= truth
    if 1e-150 < truth < 1e150:
        assert rho == pytest.approx(float(truth), rel=1e-12)
    alone = ap.epsilon(one_step(noise_std), 1e-6).value
    assert ap.group_epsilon(one_step(noise_std), 3, 1e-6).value >= alone


def test_a_multiplier_that_overflows_counts_as_the_largest():
    mechanism = ap.Mechanism(Toeplitz([1e-130], 1), ap.SingleParticipation(), 1e300)
    assert ap.epsilon(mechanism, 1e-6).value == 0.0
    assert 0.0 < ap.delta(mechanism, 1.0).value < 1e-300
    assert ap.zcdp(mechanism).value > 0.0
