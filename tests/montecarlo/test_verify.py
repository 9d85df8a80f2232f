"""Estimate, verify, release."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from antiphase import BallsInBins, sensitivity
from antiphase._errors import AntiphaseError, InvalidArgument, Refused
from antiphase._montecarlo import MonteCarlo, bins_gram, calibrate, delta, epsilon, estimate, verify
from antiphase._montecarlo import samples as samples_module
from antiphase._montecarlo.balls_in_bins import BinsPair, bins_pair
from antiphase._montecarlo.certificate import Limit, SamplingPlan, check_estimates, plan_run, run_certified
from antiphase._montecarlo.guarantee import pair_delta
from antiphase._montecarlo.pair import Upper
from antiphase._montecarlo.pilot import Effort, run_pilot
from antiphase._montecarlo.samples import child, randomness
from antiphase._montecarlo.verification import SHARE, limit_bound, log_inverse_share, try_claim
from antiphase.strategies import Identity, Toeplitz
from tests.montecarlo.oracle import integrated_delta

CLAIM = {"strategy": Toeplitz([1.0, 0.6, 0.2], 30), "participation": BallsInBins(3, 10)}
QUICK = MonteCarlo(samples=1 << 16, workers=1, seed=1)


def test_enough_noise_is_verified_and_too_little_refused():
    bound = verify(**CLAIM, noise_std=2.05, epsilon=3.0, delta=1e-6, sampling=QUICK)
    assert (bound.value, bound.kind) == (1e-6, "confident")
    assert "failure probability 1.0e-09 within delta" in bound.method
    with pytest.raises(Refused, match="add noise"):
        verify(**CLAIM, noise_std=1.95, epsilon=3.0, delta=1e-6, sampling=QUICK)


def test_one_percent_of_noise_decides():
    """The noise at which delta is exactly the claim, by integration; 1 % either way."""
    gram = np.array([[1.0, 0.5], [0.5, 0.8]])
    epsilon, delta = 2.5, integrated_delta(gram, 0.9, 2.5, points=1001)[0]
    outcomes = [try_claim(bins_pair(gram, 0.9 * f), epsilon, delta, 1, randomness(2), QUICK) for f in (0.99, 1.02)]
    assert outcomes[0].bound is None
    assert outcomes[1].bound is not None
    assert outcomes[1].bound.kind == "confident"


def test_attempts_spend_a_geometric_series():
    for claimed in (1e-3, 1e-10):
        total = math.fsum(2.0 * math.exp(-log_inverse_share(claimed, attempt)) for attempt in range(1, 60))
        assert total == pytest.approx(SHARE * claimed)
        more = log_inverse_share(claimed, 3) - log_inverse_share(claimed, 2)
        assert more == pytest.approx(math.log(2.0))


@pytest.mark.parametrize(("attempt", "method"), [(1024, "plain"), (10**6, "plain"), (10**6, "certified")])
def test_an_attempt_with_next_to_nothing_to_spend_is_refused(attempt, method):
    assert log_inverse_share(1e-6, attempt) == pytest.approx(attempt * math.log(2.0), rel=0.04)
    with pytest.raises(Refused, match=r"attempt|samples"):
        verify(**CLAIM, noise_std=2.05, epsilon=3.0, delta=1e-6, method=method, attempt=attempt, sampling=QUICK)
    assert verify(Identity(8), BallsInBins(1, 8), 3.0, 1.0, 1e-3, attempt=attempt).kind == "upper"


def test_a_failure_probability_below_floating_point():
    """Attempt 1024 has 2^-1024 of it to spend; the weights are bounded so well that it passes all the same."""
    assert math.exp(-log_inverse_share(1e-6, 1024)) < 1e-300
    found = verify(**CLAIM, noise_std=2.05, epsilon=3.0, delta=1e-6, attempt=1024, sampling=QUICK)
    assert found.kind == "confident"
    with pytest.raises(Refused, match="attempt 1025"):
        verify(**CLAIM, noise_std=1.95, epsilon=3.0, delta=1e-6, attempt=1024, sampling=QUICK)


def test_a_bound_without_samples_is_proved(monkeypatch):
    """Where the largest weight is below the claim, no sample stands behind it."""
    pair = bins_pair(bins_gram(**CLAIM), 2.05)
    none, some = Limit(1e-6, 1e-7, 1e-9, 0), Limit(1e-6, 1e-7, 1e-9, 1000)
    assert limit_bound(pair, (none, none), 1e-6, 1e-6).kind == "upper"
    assert limit_bound(pair, (none, some), 1e-6, 1e-6).kind == "confident"
    largest = pair.upper(3.0).value
    monkeypatch.setattr(BinsPair, "upper", lambda self, epsilon, fine=True: Upper(1.0, "made up", "nobody"))
    outcome = try_claim(pair, 3.0, 3.0 * largest, 1, randomness(1), QUICK)
    assert outcome.bound.kind == "upper"
    assert outcome.bound.method == "largest possible weight of a sample"


def test_a_claim_that_is_slightly_wrong_passes_no_more_often_than_allowed():
    """A delta 2 % above the goal of a run with failure probability 0.05 and far too few samples to tell."""
    gram, epsilon, beta = np.array([[1.0, 0.3], [0.3, 1.0]]), 1.5, 0.05
    truth = integrated_delta(gram, 1.0, epsilon, points=1001)[0]
    effort = Effort(2000, math.log(1.0 / beta), randomness(3), workers=1)
    pilot = run_pilot(bins_pair(gram, 1.0).estimators(epsilon)[0], epsilon, 4000, effort)
    run = SamplingPlan(pilot, 2000, pilot.expected(2000, effort.log_inverse)[0], 0.0)
    passed = sum(run_certified(run, effort, randomness(4, i)).value <= truth / 1.02 for i in range(300))
    assert passed <= 300 * beta + 4.0 * math.sqrt(300 * beta)


def test_a_proved_bound_needs_no_samples(monkeypatch):
    monkeypatch.setattr(samples_module, "collect", None)
    bound = verify(Identity(8), BallsInBins(1, 8), 3.0, 1.0, 1e-3)
    assert bound.kind == "upper"


def test_fresh_entropy_by_default_and_only_then():
    assert randomness(None).entropy != randomness(None).entropy
    assert randomness(None).entropy.bit_length() > 200
    assert randomness(7).entropy == 7
    assert child(randomness(7), 1, 2).spawn_key == (1, 2)


def test_pilot_and_certified_samples_are_drawn_apart(monkeypatch):
    """No block of the certified run has the seed of a block of the pilot."""
    seeds: list[tuple[int, ...]] = []
    original = samples_module._block

    def record(estimator, seed, count, reduce):
        seeds.append((type(estimator).__name__, *seed.spawn_key))
        return original(estimator, seed, count, reduce)

    monkeypatch.setattr(samples_module, "_block", record)
    verify(**CLAIM, noise_std=2.05, epsilon=3.0, delta=1e-6, sampling=QUICK)
    pilots = {key for key in seeds if key[3] == 0}
    certified = [key for key in seeds if key[3] == 1]
    assert pilots
    assert certified
    assert len(set(certified)) == len(certified)


def test_no_two_purposes_share_samples(monkeypatch):
    """With one seed for all: what is verified was not chosen by the samples that verify it."""
    seeds: dict[str, set[tuple]] = {}
    original = samples_module._block

    def record(estimator, seed, count, reduce):
        seeds[purpose].add((seed.entropy, seed.spawn_key))
        return original(estimator, seed, count, reduce)

    monkeypatch.setattr(samples_module, "_block", record)
    few = MonteCarlo(slack=0.5, samples=1 << 14, workers=1, seed=1)
    case = CLAIM["strategy"], CLAIM["participation"]
    calls = {
        "delta": lambda: delta(*case, 2.2, 3.0, few),
        "epsilon": lambda: epsilon(*case, 2.2, 1e-6, few),
        "calibrate": lambda: calibrate(*case, 3.0, 1e-6, few),
        "estimate": lambda: estimate(*case, 2.2, 0.5, samples=1 << 14, seed=1, workers=1),
        "first": lambda: verify(*case, 2.2, 3.0, 1e-6, sampling=few),
        "second": lambda: verify(*case, 2.2, 3.0, 1e-6, attempt=2, sampling=few),
    }
    for purpose, call in calls.items():  # `record` reads the purpose
        seeds[purpose] = set()
        call()
        assert seeds[purpose]
    assert len(set.union(*seeds.values())) == sum(len(found) for found in seeds.values())


def test_negative_entries_may_put_the_pair_above_the_sensitivity():
    """The pair uses |C|. Its delta may exceed that of one Gaussian at the sensitivity, which is then the bound."""
    case = Toeplitz([1.0, -0.9, -0.8, -0.7, -0.6, -0.5, -0.4, -0.3], 8), BallsInBins(4, 2), 1.0, 1.0
    sens = sensitivity(case[0], case[1].worst_case).value
    proved = norm.cdf(sens / 2.0 - 1.0 / sens) - math.e * norm.cdf(-sens / 2.0 - 1.0 / sens)
    assert delta(*case, QUICK).value == pytest.approx(proved, rel=1e-6)
    with pytest.raises(Refused, match="is not verified"):
        verify(*case, 1e-9, sampling=QUICK)


def test_an_estimate_above_a_proved_bound_raises(monkeypatch):
    with pytest.raises(AntiphaseError, match="exceeds the proved bound"):
        check_estimates((Limit(1e-5, 1e-6, 1e-8, 1000), Limit(1.1e-3, 1e-3, 1e-6, 1000)), 9e-4)
    check_estimates((Limit(1e-5, 1e-6, 1e-8, 1000), Limit(1.1e-3, 1e-3, 1e-4, 1000)), 9e-4)
    monkeypatch.setattr(BinsPair, "upper", lambda self, epsilon, fine=True: Upper(4e-7, "made up", "nobody"))
    with pytest.raises(AntiphaseError, match="exceeds the proved bound"):
        pair_delta(bins_pair(bins_gram(**CLAIM), 2.05), 3.0, randomness(1), QUICK)


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", -1.0), ("delta", 0.0), ("noise_std", 0.0), ("attempt", 0), ("attempt", 10**7), ("method", "magic")],
)
def test_bad_arguments(name, value):
    given = {**CLAIM, "noise_std": 2.0, "epsilon": 1.0, "delta": 1e-5, name: value}
    with pytest.raises(InvalidArgument, match=name):
        verify(**given)


def test_plans_take_the_bound_where_it_is_enough():
    effort = Effort(1 << 16, 20.0, randomness(1), workers=1)
    pilot = run_pilot(bins_pair(np.eye(4), 1.0).estimators(3.0)[0], 3.0, 4000, effort)
    assert plan_run(pilot, pilot.bound, effort).samples == 0
    few, many = (plan_run(pilot, factor * pilot.estimate, effort).samples for factor in (2.0, 1.05))
    assert 0 < few < many <= 1 << 16
