"""Every strategy under every deterministic participation, by every method, against brute force."""

import pytest

from antiphase import NotProved
from antiphase._sensitivity import sensitivity
from antiphase._sensitivity.table import METHODS, TABLE, methods
from antiphase.strategies import Strategy
from tests.catalog import every_strategy, every_variant
from tests.sensitivity.cases import every_participation
from tests.sensitivity.oracle import Truth, signed_value, squared_sensitivity

EXACT = 1e-7
SMALL = dict(every_strategy(6)) | dict(every_variant(6))


def check(strategy, participation, method, truth: Truth) -> str:
    bound = sensitivity(strategy, participation, method)
    squared = bound.value**2
    assert squared >= truth.low * (1 - 1e-9), f"{bound} is below {truth}"
    if bound.kind == "exact":
        assert squared <= truth.high * (1 + EXACT), f"{bound} is above {truth}"
    assert bound.kind in ("exact", "upper")
    assert bound.reference == METHODS[type(participation)][bound.method].reference
    return bound.kind


def check_all(strategy: Strategy, steps: int, most_patterns: int) -> None:
    for participation in every_participation(steps, most_patterns):
        truth = squared_sensitivity(strategy, participation)
        assert truth.high - truth.low <= EXACT * truth.high, "the oracle did not converge"
        check(strategy, participation, None, truth)
        refused = []
        for name in methods(strategy, participation):
            try:
                check(strategy, participation, name, truth)
            except NotProved as error:
                refused.append(error.hint)
        assert all(hint.startswith("use method=") for hint in refused)
        assert len(refused) < len(methods(strategy, participation))


@pytest.mark.parametrize(("steps", "name"), [(n, name) for n in (1, 2, 6) for name, _ in every_strategy(n)])
def test_small(steps, name):
    check_all(dict(every_strategy(steps))[name], steps, 400)


@pytest.mark.parametrize("name", [name for name, _ in every_strategy(12)])
def test_twelve_steps(name):
    check_all(dict(every_strategy(12, seed=1))[name], 12, 40)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [9, 12])
@pytest.mark.parametrize("seed", [2, 3])
def test_many_patterns(steps, seed):
    for _, strategy in every_strategy(steps, seed):
        check_all(strategy, steps, 1500)


@pytest.mark.parametrize("name", SMALL)
def test_contributions_that_are_numbers_never_exceed(name):
    """By every method: what a strategy states about C may be right only for the arguments of the catalogue."""
    strategy = SMALL[name]
    for participation in every_participation(6):
        value = signed_value(strategy, participation)
        for method in (None, *methods(strategy, participation)):
            try:
                bound = sensitivity(strategy, participation, method)
            except NotProved:
                assert method is not None
                continue
            assert value <= bound.value**2 * (1 + 1e-9), bound


def test_every_pair_is_in_the_table():
    assert {type(strategy) for _, strategy in every_strategy(12)} == set(TABLE)
    assert all(set(row.methods) == set(METHODS) for row in TABLE.values())
    assert {type(participation) for participation in every_participation(6)} == set(METHODS)


def test_every_method_answers_somewhere():
    """No method of the table is dead: each is the answer by name for some pair."""
    answered = set()
    for _, strategy in every_strategy(6):
        for participation in every_participation(6):
            for name in methods(strategy, participation):
                if (type(participation), name) not in answered:
                    try:
                        sensitivity(strategy, participation, name)
                    except NotProved:
                        continue
                    answered.add((type(participation), name))
    assert answered == {(kind, name) for kind, known in METHODS.items() for name in known}
