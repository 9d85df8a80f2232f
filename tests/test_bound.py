"""Numbers for people to read are never below what was proved."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphase._bound import rounded_up


@given(value=st.floats(0.0, 1.7e308), decimals=st.integers(0, 8))
def test_rounded_up_by_less_than_the_last_digit(value, decimals):
    excess = Fraction(rounded_up(value, decimals)) - Fraction(value)
    assert 0 <= excess < Fraction(1, 10**decimals)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_promises_nothing(value):
    assert rounded_up(value) == "infinity"
