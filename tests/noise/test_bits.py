"""The attack of docs/lattice-noise.md: the bits of floating-point releases reveal who took part.

One coordinate, one step, noise of standard deviation 1, and an example that contributes 1 or nothing.
"""

import math

import numpy as np
import pytest

import antiphase as ap
from antiphase.strategies import Identity

COUNT = 200_000  # independent copies of the experiment, as coordinates
FINEST = 2.0**-24  # spacing of float32 numbers between 1/2 and 1


def answers_absent(released):
    """Whether the attacker answers "did not take part": near 0 and not a multiple of the spacing near 1."""
    return (np.abs(released) < 0.25) & (np.rint(released / FINEST) * FINEST != released)


def releases(mechanism, takes_part):
    """Releases as float64 numbers, without any rounding."""
    noise = ap.NoiseStream(mechanism, [(COUNT,)], ap.Secret.insecure(3 + takes_part), "attack").next()[0]
    if mechanism.lattice is None:
        return (np.float32(takes_part) + noise).astype(np.float64)
    (given,) = mechanism.lattice.contribution([np.array([float(takes_part)])])
    return np.ldexp((noise + given).astype(np.float64), mechanism.lattice.exponent)


def test_floating_point_releases_reveal_who_did_not_take_part():
    mechanism = ap.Mechanism(Identity(1), ap.EveryStep(), 1.0)
    absent, present = (answers_absent(releases(mechanism, takes_part)).mean() for takes_part in (False, True))
    assert present == 0.0  # the attacker never errs,
    assert absent > 0.15  # and answers often
    # For every epsilon, delta is at least absent - e^epsilon present. The stated guarantee promises far less.
    assert ap.delta(mechanism, 4.0).value < 1e-3 < absent - math.exp(4.0) * present


@pytest.mark.parametrize("grid_bits", [32, 24, 20])
def test_the_attack_learns_nothing_from_a_lattice(grid_bits):
    """The answers have the probabilities of the same events for real Gaussians, with and without the example."""
    lattice = ap.Lattice(-grid_bits, 2**grid_bits, COUNT)
    mechanism = ap.Mechanism(Identity(1), ap.EveryStep(), 1.0, lattice=lattice)
    absent, present = (answers_absent(releases(mechanism, takes_part)).mean() for takes_part in (False, True))
    if grid_bits <= 24:
        assert absent == present == 0.0  # every release is a multiple of the grid
        return
    error = 6 * math.sqrt(0.2 / COUNT)
    share = 1 - 2.0**-8  # of the multiples of 2^-32 that are not multiples of 2^-24
    near = [math.erf((0.25 - x) / math.sqrt(2)) / 2 - math.erf((-0.25 - x) / math.sqrt(2)) / 2 for x in (0.0, 1.0)]
    assert abs(absent - share * near[0]) < error
    assert abs(present - share * near[1]) < error
    assert absent <= math.exp(1.0) * present + ap.delta(mechanism, 1.0).value
