"""Black-box audits: the distribution of the scores of final models, and bounds that hold and see large leaks."""

from dataclasses import replace

import numpy as np
import pytest

import antiphase as ap
from antiphase.audit import FinalModels, evaluate, evaluate_final_models, final_models, joined_final_models, simulate
from antiphase.audit._black_box import final_model_reference
from tests.audit.mechanisms import CASES, mechanism

SECRET = ap.Secret.insecure(5)
MOMENTUM = ap.Momentum(0.5)


def largest(audit):
    return max(bound.measured_epsilon_at_least for bound in audit.measured)


@pytest.mark.parametrize("workload", [ap.PrefixSum(), MOMENTUM], ids=["sgd", "momentum"])
def test_scores_have_the_mean_and_spread_of_the_last_row(workload):
    """Identity noise, every step: the score is sum w_i (present + noise), by definition of the workload."""
    given = mechanism("every step", 4.0)
    found = final_models(simulate(given, canaries=20_000, secret=SECRET), workload)
    weights = workload.matrix(16)[-1]
    spread = given.noise_std * np.linalg.norm(weights)
    for present, mean in ((True, weights.sum()), (False, 0.0)):
        values = found.scores[found.present == present]
        assert abs(values.mean() - mean) < 6.0 * spread / np.sqrt(len(values))
        assert abs(values.std() / spread - 1.0) < 6.0 / np.sqrt(2.0 * len(values))


@pytest.mark.parametrize("name", CASES)
def test_reference_scores_are_distributed_like_those_of_a_simulation(name):
    """Two-sample Kolmogorov-Smirnov tests with fixed seeds, present and absent."""
    from scipy.stats import ks_2samp

    given = mechanism(name)
    found = final_models(simulate(given, canaries=2_000, secret=SECRET))
    reference = final_model_reference(given, ap.PrefixSum(), 20_000, seed=2)
    for present, expected in zip((True, False), reference, strict=True):
        assert ks_2samp(found.scores[found.present == present], expected).pvalue > 1e-4


@pytest.mark.parametrize("name", CASES)
def test_a_right_mechanism_is_not_flagged_and_less_is_seen_than_with_every_step(name):
    given = mechanism(name, 8.0)
    release = simulate(given, canaries=1_000, secret=SECRET)
    black, white = evaluate_final_models(given, final_models(release)), evaluate(given, release)
    assert not black.flagged
    assert black.tests == ()
    assert largest(black) <= largest(white)


def test_a_large_leak_is_flagged():
    claimed = mechanism("every step", 1.0)
    leaky = replace(claimed, noise_std=claimed.noise_std / 5.0)
    audit = evaluate_final_models(claimed, final_models(simulate(leaky, canaries=4_000, secret=SECRET)))
    assert audit.flagged
    assert any("Measured epsilon of at least" in text for text in audit.findings)


def test_runs_are_joined():
    given = mechanism("every step")
    each = [final_models(simulate(given, canaries=30, secret=ap.Secret.insecure(i))) for i in range(3)]
    joined = joined_final_models(each)
    assert joined.scores.tolist() == [score for one in each for score in one.scores]
    assert joined.present.tolist() == [flag for one in each for flag in one.present]


@pytest.mark.parametrize(
    ("scores", "present", "match"),
    [([1.0, np.nan], [True, False], "scores"), ([[1.0]], [[True]], "scores"), ([1.0, 2.0], [True], "present")],
)
def test_wrong_final_models_are_refused(scores, present, match):
    with pytest.raises(ap.InvalidArgument, match=match):
        FinalModels(scores, present)
