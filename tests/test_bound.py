"""Numbers for people to read are never below what was proved."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
