"""Problems that contradict themselves: refused, and the nearest problem that the hint names does work."""

import re

import pytest

import antiphase as ap

BUDGET = ap.Budget(2.0, 1e-6)


def named(error: ap.AntiphaseError, name: str) -> int:
    """The value that the hint gives to an argument."""
    found = re.search(rf"{name}=(\d+)", error.hint)
    assert found, error.hint
    return int(found.group(1))


def test_a_batch_larger_than_the_data():
    with pytest.raises(ap.InvalidArgument, match="batch_size") as caught:
        ap.Problem(steps=10, budget=BUDGET, examples=100, batch_size=200)
    assert ap.Problem(steps=10, budget=BUDGET, examples=100, batch_size=named(caught.value, "batch_size"))


@pytest.mark.parametrize("kind", [ap.FixedEpochs, ap.ShuffledEpochs, ap.BallsInBins])
def test_epochs_that_do_not_fit_the_steps(kind):
    with pytest.raises(ap.InvalidArgument, match="steps") as caught:
        ap.Problem(steps=100, budget=BUDGET, participation=kind(3, 30))
    assert named(caught.value, "steps") == 90
    assert ap.Problem(steps=90, budget=BUDGET, participation=kind(3, 30))
    assert ap.Problem(steps=100, budget=BUDGET, participation=kind(named(caught.value, "epochs"), 30))


@pytest.mark.parametrize(
    "participation", [ap.Poisson(0.5), ap.CyclicPoisson(2, 1.0), ap.FixedSize(2, 50)], ids=lambda p: type(p).__name__
)
def test_a_batch_size_that_the_sampling_does_not_draw(participation):
    with pytest.raises(ap.InvalidArgument, match="average batch size") as caught:
        ap.Problem(steps=10, budget=BUDGET, examples=100, batch_size=10, participation=participation)
    works = named(caught.value, "batch_size")
    assert works == 50
    assert ap.Problem(steps=10, budget=BUDGET, examples=100, batch_size=works, participation=participation)


@pytest.mark.parametrize(
    ("families", "needed"),
    [(["tree"], None), (["stamped"], None), (["blt"], 1), (["banded-inverse"], 1), (["dense", "fourier"], 24)],
    ids=str,
)
def test_memory_that_no_family_fits(families, needed):
    def asked(copies: int) -> ap.Problem:
        return ap.Problem(steps=24, budget=BUDGET, participation=ap.FixedEpochs(3, 8), memory_copies=copies)

    with pytest.raises(ap.Refused, match="memory_copies=0") as caught:
        ap.plan(asked(0), families)
    least = named(caught.value, "memory_copies")
    assert needed in (None, least)
    assert ap.plan(asked(least), families).mechanism.strategy.memory_copies == least
    with pytest.raises(ap.Refused, match=f"memory_copies={least - 1}"):
        ap.plan(asked(least - 1), families)
    assert ap.plan(asked(0), [*families, "identity"]).mechanism.strategy.memory_copies == 0


def test_what_is_not_proved_says_what_is():
    problem = ap.Problem(steps=24, budget=BUDGET, participation=ap.FixedEpochs(3, 8), adjacency="add-or-remove")
    with pytest.raises(ap.NotProved, match="add-or-remove") as caught:
        ap.plan(problem)
    assert "zero-out" in caught.value.hint
    with pytest.raises(
        ap.NotProved, match=r"No mechanism of the families tree can be tried with Poisson\(.*and 24 steps"
    ):
        ap.plan(ap.Problem(steps=24, budget=BUDGET, participation=ap.Poisson(0.1)), ["tree"])


def test_a_tiny_budget_is_planned_without_balls_in_bins():
    """Samples cannot tell how much noise it needs: to the last digit, every noise gives the same estimate."""
    problem = ap.Problem(steps=100, budget=ap.Budget(1e-9, 1e-12), examples=5000, batch_size=250)
    plan = ap.plan(problem, families=["identity", "blt"])
    assert plan.guarantee.value <= 1e-9
    with pytest.raises(ap.NotProved, match="Monte Carlo sampling cannot estimate the noise for epsilon = 1e-09"):
        ap.plan(problem, families=["blt"], pipelines=["balls-in-bins"])


def test_a_fraction_is_no_batch_size():
    with pytest.raises(ap.InvalidArgument, match=r"batch_size.*99\.5") as caught:
        ap.Problem(steps=10, budget=BUDGET, examples=1000, batch_size=99.5)
    assert caught.value.hint == "round it to a whole number"
