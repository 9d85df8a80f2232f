"""What it costs to extend a run by looking at its outputs, computed by dynamic programming over all stopping rules."""

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.stats import norm

import antiphase as ap

DELTA, NOISE_STD, FIRST = 1e-6, 20.0, 100


def worst_delta(last, epsilon_after):
    """The largest delta over all rules that stop between FIRST and `last` steps and then claim `epsilon_after(steps)`.

    Under independent noise, the privacy loss is a random walk with normal increments, and the delta of a rule is the
    mean of (1 - exp(claimed epsilon - loss))_+ at its stopping time. The best rule follows by backward induction.
    """
    mu, width = 1.0 / NOISE_STD, 0.002
    losses, offsets = np.arange(-8.0, 30.0, width), width * np.arange(-250, 251)
    kernel = norm.pdf(-offsets, mu**2 / 2, mu)
    kernel /= kernel.sum()
    value = np.zeros_like(losses)
    for steps in range(last, FIRST - 1, -1):
        stopped = np.maximum(0.0, -np.expm1(np.minimum(0.0, epsilon_after(steps) - losses)))
        value = np.maximum(stopped, fftconvolve(value, kernel, mode="same"))
    start = norm.pdf(losses, mu**2 * FIRST / 2, mu * np.sqrt(FIRST)) * width
    return float(start @ value)


def stated(steps):
    return ap.epsilon(ap.Mechanism(ap.strategies.Identity(steps), ap.EveryStep(), NOISE_STD), DELTA).value


def test_a_run_that_is_not_extended_has_the_stated_delta():
    assert worst_delta(FIRST, stated) == pytest.approx(DELTA, rel=1e-2)


@pytest.mark.parametrize(("last", "factor"), [(200, 4), (1600, 12)])
def test_extending_by_looking_costs_what_the_documentation_says(last, factor):
    """docs/sharp-edges.md states both factors. The plan for the largest number of steps covers every rule."""
    assert worst_delta(last, stated) / DELTA == pytest.approx(factor, rel=0.1)
    whole = stated(last)
    assert worst_delta(last, lambda steps: whole) == pytest.approx(DELTA, rel=1e-2)
