"""Correlators for lattice noise, which compute the noise of each step in exact integers (int64).

The noise of a step is a random integer (a draw) minus a weighted sum of past outputs, past draws or the buffers of a
BLT. Each weighted sum is computed exactly and then rounded, so the noise is the same on every machine.
docs/lattice-noise.md describes the mechanism and proves its guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from antiphase._errors import InvalidArgument, Refused
from antiphase._lattice import IntegerBuffers, IntegerForm, IntegerRestart, IntegerSum, Lattice, integer_form
from antiphase._noise.choose import RestartCorrelator
from antiphase._noise.correlator import Correlator, Noise, Part, Scratch, White
from antiphase._noise.host_check import check_compiler
from antiphase._noise.leaves import Leaf
from antiphase._noise.origin import MechanismLike
from antiphase.strategies import Strategy

INTEGER = np.dtype(np.int64)


def lattice_of(mechanism: MechanismLike) -> Lattice | None:
    """Return the lattice of a mechanism; None if its noise is computed in floating point."""
    return getattr(mechanism, "lattice", None)


def check_lattice(mechanism: MechanismLike, leaves: Mapping[str, Leaf]) -> None:
    """Raise an error if the lattice noise does not fit into 64 bits, or if the model is larger than the plan allows.

    The leaves are the arrays of the model.
    """
    lattice = lattice_of(mechanism)
    assert lattice is not None
    entries = sum(math.prod(leaf.global_shape) for leaf in leaves.values())
    if entries > lattice.entries:
        raise InvalidArgument(
            f"The lattice of this plan accounts for {lattice.entries:,} parameters. The model has {entries:,}.",
            hint=f"create the plan with Problem(parameters={entries}) or more",
        )
    check_compiler()
    lattice.check(mechanism.strategy, mechanism.noise_std)


def integer_correlator(strategy: Strategy, lattice: Lattice, entries: int) -> Correlator:
    """Return the correlator that computes the lattice noise of a strategy from draws of floor(N(0, sigma^2))."""
    return _correlator(integer_form(strategy), lattice, entries)


def _correlator(form: IntegerForm, lattice: Lattice, entries: int) -> Correlator:
    if isinstance(form, IntegerRestart):
        return RestartCorrelator(form.recursion, _correlator(form.inner, lattice, entries))
    if isinstance(form, IntegerBuffers):
        return IntegerBuffersCorrelator(form, lattice.fraction_bits, entries)
    return IntegerSumCorrelator(form, entries)


@final
class IntegerSumCorrelator(Correlator):
    """Computes y = z - round(c . history), where the history is a ring buffer of past outputs y.

    For BandedInverse, the history consists of past draws z instead.
    """

    def __init__(self, form: IntegerSum, entries: int) -> None:
        self._form = form
        self.is_replayed = form.history == 0
        super().__init__(form.recursion, 1.0, entries, INTEGER)

    def state_rows(self) -> int:
        """Return the length of the history."""
        return self._form.history

    def prepare(self) -> None:
        """Collect the coefficients of the step and the rows of the ring buffer that it uses."""
        rows = self.state_rows()
        self._coefficients = self._form.row(self.step)
        lags = np.arange(1, len(self._coefficients) + 1)
        self._slots = (self.step - lags) % max(rows, 1)
        self._newest = self.step % rows if rows else -1

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Draw z into the output and replace it by the step's noise."""
        from antiphase._kernels import integer_sum_step

        white(self.step, out)
        if self._newest >= 0:
            held = self.state[part.strips]
            arguments = (held, self._slots, self._coefficients, self._newest, self._form.keeps_draws)
            _check_fits(integer_sum_step(*arguments, out))

    def replay_from(self, step: int) -> int:
        """Return the step from which to replay.

        If the history holds draws, this is the oldest step whose draw is needed. If it holds outputs, all earlier steps
        are replayed, because outputs depend on earlier outputs.
        """
        if self._form.keeps_draws or not self._form.history:
            return max(step - self._form.history, 0)
        return 0

    def extend(self, recursion: Any) -> None:
        """Continue with more steps of the same C, whose coefficients do not depend on the step."""
        self.recursion = recursion


@final
class IntegerBuffersCorrelator(Correlator):
    """Computes the noise of a BLT with integer buffers in units of 2^-fraction_bits."""

    def __init__(self, form: IntegerBuffers, fraction_bits: int, entries: int) -> None:
        self._form, self._fraction_bits = form, fraction_bits
        super().__init__(form.recursion, 1.0, entries, INTEGER)

    def state_rows(self) -> int:
        """Return the number of buffers."""
        return len(self._form.decay)

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Draw z into the output and replace it by the step's noise."""
        from antiphase._kernels import integer_buffers_step

        white(self.step, out)
        held: NDArray[np.int64] = self.state[part.strips]
        _check_fits(integer_buffers_step(held, self._form.decay, self._form.scale, self._fraction_bits, out))


def _check_fits(overflows: bool) -> None:
    if overflows:
        raise Refused(
            "A value of the lattice noise does not fit into 62 bits. This never happens with random draws.",
            hint="check the secret and the machine, and start a new run",
        )
