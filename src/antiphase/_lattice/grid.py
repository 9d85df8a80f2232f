"""The `Lattice` of a mechanism: the grid on which it adds integer noise, and the rounding of gradients to this grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphase import _check
from antiphase._check import Array
from antiphase._errors import InvalidArgument, NotProved, Refused
from antiphase._lattice.integers import COEFFICIENT_BITS, IntegerBuffers, IntegerRestart, integer_form
from antiphase._lattice.range import LARGEST, check_range, largest_number
from antiphase._lattice.rounding import lifetimes, rounding_term
from antiphase._participation import Participation
from antiphase._record import optional, record
from antiphase.strategies import BLT, Stamped, Strategy

SMALLEST_NORM_BITS = 32  # if 64-bit integers allow it, the clipping norm has at least this many bits in grid units
LARGEST_NORM_BITS = 46
LARGEST_SIGMA = 1 << 54  # largest standard deviation that the sampler supports, in grid units
SPARE_BITS = 20  # if 64-bit integers allow it, rounding adds at most 2^-20 of the clipping norm to the sensitivity
NEEDED_BITS = 7  # if they do not allow it, rounding may add up to 2^-7 of the clipping norm instead
LARGEST_EXPONENT = 900
SHRINKS = 40  # maximum number of attempts to scale a contribution so that its exact norm is small enough
OTHER_FLOATS = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}  # dtypes of ml_dtypes; NumPy reports kind void
SMALLEST_SQUARED, LARGEST_SQUARED = 1e-100, 1e100  # range of numbers whose squares can be added up in float64
Integers = NDArray[np.int64]


@final
@record
class Lattice:
    """The grid on which a mechanism adds noise in exact integers, so that every bit of a release is covered.

    A contribution is the clipped gradient of one example (or the update of one client), rounded to a vector of
    integers. The integers count units of 2^exponent, and their Euclidean norm is at most `norm`. Sums, noise and
    releases are integers in the same units.

    **Guarantee**: with contributions made by `contribution` or `clipped_sum`, the privacy guarantee of the mechanism
    holds for the released integers themselves, not only for real numbers. See docs/lattice-noise.md.

    Args:
        exponent: binary exponent of the grid unit, 2^exponent.
        norm: largest norm of a contribution, in grid units.
        entries: largest number of coordinates (model parameters), d. The guarantee holds for up to d coordinates.
        fraction_bits: number of fractional bits in the noise buffers of a BLT; 0 for other strategies.

    >>> Lattice(exponent=-3, norm=8, entries=2).contribution([[0.3, -5.0]])[0].tolist()
    [0, -7]
    """

    exponent: int
    norm: int
    entries: int
    fraction_bits: int = optional(0)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("exponent", -LARGEST_EXPONENT, LARGEST_EXPONENT),
            ("norm", 1, 1 << (LARGEST_NORM_BITS + 1)),
            ("entries", 1, 1 << 60),
            ("fraction_bits", 0, 40),
        ):
            value = _check.integer(getattr(self, name))
            if value is None or not low <= value <= high:
                hint = "make it with choose_lattice, or pass lattice=True to Problem"
                must = f"an integer from {low} to {high}"
                raise _check.invalid("Lattice", name, must, getattr(self, name), hint)
            object.__setattr__(self, name, value)

    @property
    def grid(self) -> float:
        """The grid unit, 2^exponent."""
        return math.ldexp(1.0, self.exponent)

    @property
    def clip_norm(self) -> float:
        """Largest norm of a contribution as a real number, norm * grid."""
        return math.ldexp(float(self.norm), self.exponent)

    def rounding(self, strategy: Strategy, count: int) -> float:
        """Return how much rounding adds to the sensitivity for contributions of norm 1: K sqrt(d R) / norm, rounded up.

        d is the number of coordinates. R is the number of rows of C in which the rounding error can differ between
        neighbouring data sets, and K bounds the difference in each coordinate of such a row (see `rounding.py`).

        Args:
            strategy: strategy from `rounded_strategy`.
            count: largest number of steps in which one example takes part.
        """
        term = rounding_term(integer_form(strategy), count, self.entries, self.fraction_bits)
        return term / self.norm * (1.0 + 1e-12)

    def check(self, strategy: Strategy, noise_std: float) -> None:
        """Raise an error if the noise cannot be computed in 64-bit integers.

        Raises `Refused` if a number might not fit, and `NotProved` if there is no proof for the strategy.
        """
        sigma = self.sigma(noise_std) if math.isfinite(noise_std) else LARGEST_SIGMA + 1
        if sigma > LARGEST_SIGMA:
            raise Refused(
                f"The clipping norm is {self.norm} grid units, and the standard deviation of the noise is "
                f"{noise_std:.3g} times that norm. The sampler supports standard deviations up to 2^54 grid units.",
                hint="use a coarser grid",
            )
        check_range(strategy, integer_form(strategy), sigma, self.fraction_bits)

    def sigma(self, noise_std: float) -> int:
        """Return the standard deviation of the integer draws in grid units: noise_std times `norm`, rounded up."""
        return math.ceil(Fraction(noise_std) * self.norm)

    def contribution(self, arrays: Iterable[ArrayLike]) -> list[Integers]:
        """Return the contribution of one example: clipped, truncated towards zero to the grid, and checked.

        The squared norm of the integers is computed exactly and is at most norm^2. A contribution with a number that is
        not finite becomes zero.

        Args:
            arrays: gradient or update of one example, one array for each leaf (array of the model).
        """
        given = [_numbers(array) for array in arrays]
        made = self._truncated([_floats(array) for array in given])
        return [values.reshape(array.shape) for values, array in zip(made, given, strict=True)]

    def add_contribution(
        self, totals: Sequence[Integers], arrays: Iterable[ArrayLike], size: tuple[float, float] | None = None
    ) -> None:
        """Compute the integers of `contribution` and add them to `totals`, in place, modulo 2^64 and without a copy.

        If the norm of the integers turns out to be too large, exactly these integers are subtracted again, and smaller
        integers are added. If an exception such as KeyboardInterrupt is raised halfway, the totals must not be used.

        Args:
            totals: one contiguous array of int64 for each leaf (array of the model).
            arrays: update of one example, one array for each leaf.
            size: the result of `largest_and_norm` for these arrays, if already computed.
        """
        from antiphase._kernels import add_truncated

        given = [_numbers(array) for array in arrays]
        _check_totals(totals, given)
        scaled = self._scaled([_floats(array) for array in given], size)
        if scaled is None:
            return
        (flat, factor), into = scaled, [total.reshape(-1) for total in totals]
        for attempt in range(SHRINKS):  # as in `_truncated`
            pairs = [add_truncated(array, factor, total) for array, total in zip(flat, into, strict=True)]
            if _square(pairs) <= self.norm**2:
                return
            for array, total in zip(flat, into, strict=True):
                add_truncated(array, -factor, total)
            factor *= 1.0 - math.ldexp(1.0, attempt - SHRINKS)

    def _truncated(self, flat: list[NDArray[Any]]) -> list[Integers]:
        from antiphase._kernels import truncated

        made = [np.zeros(array.shape, dtype=np.int64) for array in flat]
        scaled = self._scaled(flat, None)
        if scaled is None:
            return made
        flat, factor = scaled
        for attempt in range(SHRINKS):  # the norm in `_scaled` may have rounding errors; the check below is exact
            pairs = [truncated(array, factor, into) for array, into in zip(flat, made, strict=True)]
            if _square(pairs) <= self.norm**2:
                return made
            factor *= 1.0 - math.ldexp(1.0, attempt - SHRINKS)
        return [np.zeros(array.shape, dtype=np.int64) for array in flat]

    def _scaled(
        self, flat: list[NDArray[Any]], size: tuple[float, float] | None
    ) -> tuple[list[NDArray[Any]], float] | None:
        """Return arrays and a factor whose product is the clipped contribution in grid units; None if it is zero."""
        largest, norm = _largest_and_norm(flat) if size is None else size
        if not math.isfinite(largest) or largest == 0.0:
            return None
        unit = math.ldexp(1.0, -self.exponent)
        if not SMALLEST_SQUARED < largest < LARGEST_SQUARED:  # squares may have overflowed or underflowed
            flat = [array.astype(np.float64) / largest for array in flat]
            norm = _largest_and_norm(flat)[1]
            unit *= largest  # this may overflow to infinity, but then the contribution is clipped anyway
        return flat, min(unit, self.norm / norm)

    def clipped_sum(self, arrays: Sequence[ArrayLike], mask: ArrayLike | None = None) -> list[Integers]:
        """Return the exact sum of the contributions of a batch.

        Args:
            arrays: one array for each leaf, whose first axis runs over the examples.
            mask: booleans that say which examples to include; None for all.
        """
        given = [_numbers(array) for array in arrays]
        counts = {len(array) if array.ndim else None for array in given}
        if len(counts) != 1 or None in counts:
            got = f"shapes {[array.shape for array in given]}"
            must = "arrays whose first axes have the same length, the number of examples"
            raise _check.invalid("Lattice.clipped_sum", "arrays", must, got, "pass one array for each leaf")
        count = len(given[0])
        included = np.ones(count, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if included.shape != (count,):
            must = f"{count} booleans, one for each example"
            raise _check.invalid(
                "Lattice.clipped_sum", "mask", must, f"shape {included.shape}", "use None to include all examples"
            )
        totals = [np.zeros(array.shape[1:], dtype=np.int64) for array in given]
        for i in np.flatnonzero(included):
            add_exactly(totals, self.contribution(array[i] for array in given))
        return totals

    def value(self, arrays: Iterable[Integers]) -> list[Array]:
        """Return integers times `grid`, as float64. This is post-processing and costs no privacy."""
        return [np.ldexp(np.asarray(array).astype(np.float64), self.exponent) for array in arrays]


def largest_and_norm(arrays: Iterable[ArrayLike]) -> tuple[float, float]:
    """Return the largest absolute value and the norm of an update, computed in float64.

    The largest absolute value is NaN or infinite if any entry is. The norm has rounding errors. It may be infinite if
    squares overflow, and too small if they underflow.
    """
    return _largest_and_norm([_floats(_numbers(array)) for array in arrays])


def _largest_and_norm(flat: Sequence[NDArray[Any]]) -> tuple[float, float]:
    from antiphase._kernels import largest_and_square

    found = [largest_and_square(array) for array in flat]
    if any(math.isnan(largest) for largest, _ in found):
        return math.nan, math.nan
    return max((largest for largest, _ in found), default=0.0), math.sqrt(sum(square for _, square in found))


def _square(pairs: Iterable[tuple[Any, Any]]) -> int:
    """Return the sum of 2^64 high + low over all pairs (high, low)."""
    return sum((int(high) << 64) + int(low) for high, low in pairs)


def _check_totals(totals: Sequence[Integers], given: Sequence[NDArray[Any]]) -> None:
    fits = len(totals) == len(given) and all(
        _are_int64(total) and total.flags.c_contiguous and total.flags.writeable and total.shape == array.shape
        for total, array in zip(totals, given, strict=True)
    )
    if not fits:
        must = f"contiguous, writeable arrays of int64 of the shapes {[array.shape for array in given]}"
        got = [_check.shown(total) for total in totals]
        raise _check.invalid("Lattice.add_contribution", "totals", must, got, "use numpy.zeros(shape, numpy.int64)")


def add_exactly(totals: Sequence[Integers], values: Sequence[Integers]) -> None:
    """Add integers in place, modulo 2^64.

    Sums that do not fit into 64 bits wrap around. Wrapping is post-processing of the exact sum, so it costs no privacy.
    An error, in contrast, would reveal that the sum is large. The norm of a contribution is at most 2^47, so the sum of
    fewer than 2^14 contributions always fits.
    """
    for total, value in zip(totals, values, strict=True):
        if getattr(total, "shape", None) != getattr(value, "shape", ()) or not _are_int64(total, value):
            raise InvalidArgument(
                f"Lattice noise is added to arrays of int64 of the same shape. Got {_check.shown(total)} and "
                f"{_check.shown(value)}.",
                hint="use Lattice.contribution or Lattice.clipped_sum",
            )
        if not total.flags.writeable:
            raise InvalidArgument("An array of totals is not writeable.", hint="use a copy of the array")
    for total, value in zip(totals, values, strict=True):
        np.add(total, value, out=total)


def _are_int64(*arrays: object) -> bool:
    return all(isinstance(array, np.ndarray) and array.dtype == np.int64 for array in arrays)


def _numbers(given: ArrayLike) -> NDArray[Any]:
    """Return an array of real numbers. The check looks only at the dtype, so an error does not depend on the data."""
    array = np.asarray(given)
    masked = isinstance(given, np.ma.MaskedArray)
    if masked or (array.dtype.kind not in "fiub" and array.dtype.name not in OTHER_FLOATS):
        got = "a masked array" if masked else f"dtype {array.dtype}"
        raise _check.invalid("Lattice.contribution", "arrays", "arrays of real numbers", got, "use dtype float32")
    return array


def _floats(array: NDArray[Any]) -> NDArray[Any]:
    """Return a flat, contiguous array of float32 or float64.

    Long doubles that are too large become infinite, without a warning. Python can turn warnings into errors, and an
    error must not depend on the values.
    """
    kept = array.dtype in (np.dtype(np.float32), np.dtype(np.float64))
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array if kept else array.astype(np.float64)).reshape(-1)


def rounded_strategy(strategy: Strategy) -> Strategy:
    """Return the strategy with C divided by its diagonal, and with coefficients rounded to multiples of 2^-40.

    Raises `NotProved` if there is no lattice noise for the strategy. Use the returned strategy for the accounting.

    >>> from antiphase.strategies import Toeplitz
    >>> rounded_strategy(Toeplitz([2.0, 1.0], 3)).coefficients.tolist()
    [1.0, 0.5]
    """
    made = strategy
    if isinstance(strategy, BLT):
        made = replace(strategy, decay=np.clip(_rounded(strategy.decay), 0.0, 1.0), scale=_rounded(strategy.scale))
    elif isinstance(strategy, Stamped):
        made = replace(strategy, strategy=rounded_strategy(strategy.strategy))
    elif not strategy.has_unit_columns:
        made = _divided(strategy)
    integer_form(made)
    return made


def _divided(strategy: Strategy) -> Strategy:
    def scale(entries: Array) -> Array:
        with np.errstate(over="ignore"):
            return _rounded(entries / entries.reshape(-1)[0])

    return strategy.rescaled(scale, scale) or strategy


def _rounded(values: Array) -> Array:
    # Clipping avoids overflow. It changes only coefficients that are too large for lattice noise.
    clipped = np.clip(values, -(2.0**COEFFICIENT_BITS), 2.0**COEFFICIENT_BITS)
    return np.ldexp(np.rint(np.ldexp(clipped, COEFFICIENT_BITS)), -COEFFICIENT_BITS)


def choose_lattice(
    strategy: Strategy, participation: Participation, noise_std: float, parameters: int, clip_norm: float = 1.0
) -> Lattice:
    """Return a lattice that is fine enough for the rounding to be negligible, and coarse enough for 64-bit integers.

    If possible, rounding adds at most 2^-20 times the clipping norm to the sensitivity. Such a grid can be too fine:
    the integers exceed 62 bits, the range of the sampler, or the largest `Lattice.norm`. Then a coarser grid is chosen,
    with which rounding adds up to 2^-7 times the clipping norm. If that grid is too fine as well, `NotProved` is
    raised.

    Args:
        strategy: strategy from `rounded_strategy`.
        participation: steps in which one example participates.
        noise_std: standard deviation of the noise without a lattice; with a lattice, slightly more noise is needed.
        parameters: largest number of model parameters, d.
        clip_norm: norm to which contributions are clipped.
    """
    form = integer_form(strategy)
    inner = form.inner if isinstance(form, IntegerRestart) else form
    fraction_bits = 0
    if isinstance(inner, IntegerBuffers):
        weight = float(np.abs(inner.recursion.scale) @ lifetimes(inner.recursion))
        fraction_bits = max(math.ceil(math.log2(weight)), 0) if weight > 0.0 else 0
    count = participation.worst_case.largest_count(strategy.steps)
    term = rounding_term(form, count, parameters, fraction_bits)
    needed = math.ceil(math.log2(max(term, 1.0)))
    bits = min(max(needed + SPARE_BITS, SMALLEST_NORM_BITS), LARGEST_NORM_BITS)
    noise = max(noise_std, 1.0) * 1.01
    if not math.isfinite(noise):
        raise _too_coarse(strategy)
    while bits > needed + NEEDED_BITS:
        sigma = math.ceil(Fraction(noise) * (2 << bits))
        if sigma <= LARGEST_SIGMA and largest_number(form, sigma, fraction_bits) <= LARGEST:
            break
        bits -= 1
    else:
        raise _too_coarse(strategy)
    exponent = math.frexp(clip_norm)[1] - 1 - bits
    if abs(exponent) > LARGEST_EXPONENT:
        raise NotProved(
            f"There is no lattice for a clipping norm of {clip_norm:g}: the grid unit, 2^{exponent}, is out of range.",
            hint="multiply the loss and the clipping norm by the same factor, so that the norm is closer to 1",
        )
    norm = math.floor(Fraction(clip_norm) / Fraction(2) ** exponent)
    return Lattice(exponent, norm, parameters, fraction_bits)


def _too_coarse(strategy: Strategy) -> NotProved:
    return NotProved(
        f"No grid is both fine enough for the rounding of this {type(strategy).__name__} to be negligible and coarse "
        "enough for 64-bit integers.",
        hint="use a strategy whose inverse does not grow from step to step, or floating-point noise (lattice=False)",
    )
