"""Numbers for people to read are never below what was proved."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import antiphase as ap
from antiphase._bound import digits_up, rounded_up


@given(value=st.floats(0.0, 1.7e308), decimals=st.integers(0, 8))
def test_rounded_up_by_less_than_the_last_digit(value, decimals):
    excess = Fraction(rounded_up(value, decimals)) - Fraction(value)
    assert 0 <= excess < Fraction(1, 10**decimals)


@given(value=st.floats(1e-300, 1e300), digits=st.integers(2, 12))
def test_digits_up_are_never_less_and_differ_by_less_than_the_last(value, digits):
    """Of the shortest decimal that gives the number, which is what was typed."""
    typed, said = Fraction(repr(value)), Fraction(digits_up(value, digits))
    assert 0 <= said - typed < said * Fraction(10) ** (1 - digits)


@pytest.mark.parametrize("value", [1e-5, 1e-6, 0.1, 1.0, 2.5, 10.0, 1e5, 1e6, 1e300, 3.3e-7])
def test_round_numbers_are_written_as_they_were_typed(value):
    assert digits_up(value) == f"{value:g}"


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_promises_nothing(value):
    assert rounded_up(value) == "infinity"


def test_plans_and_reports_never_show_less_than_their_delta(tmp_path):
    """Six digits of 1.2345649e-6, rounded to the nearest, would be 1.23456e-06: less than what was proved."""
    delta = 1.2345649e-6
    mechanism = ap.Mechanism(ap.strategies.Identity(4), ap.SingleParticipation(), noise_std=3.0)
    problem = ap.Problem(4, ap.Budget(4.0, delta), participation=mechanism.participation)
    plan = ap.Plan(problem, mechanism, ap.epsilon(mechanism, delta), error=1.0)
    with ap.Run.open(plan, tmp_path, leaves=[(2,)]) as run:
        for text in (str(plan), repr(plan), str(run.report())):
            shown = re.findall(r"delta ([0-9.e-]+[0-9])", text)
            assert shown
            assert all(float(number) >= delta for number in shown)


def test_small_epsilons_keep_their_digits():
    """Four decimals of 9.9987e-7 would be 0.0001, a hundred times the budget."""
    assert rounded_up(9.9987e-7) == "9.999e-07"
    assert rounded_up(0.0099991) == "0.01"
    assert rounded_up(0.01) == "0.0101"  # the float nearest to 0.01 is larger than 0.01
    assert rounded_up(0.0) == "0.0000"
