"""Before the first step: the noise that a source makes is the noise of the plan, or the run does not start.

Two checks. Over the whole run, float64 algebra says how large state and noise become: both must be well within the
dtype. For the first steps, the very code that will make the noise is given a known z, and what it makes is
compared with float64 algebra. Neither takes model-sized memory, nor more than milliseconds for ordinary strategies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from antiphase._check import Array
from antiphase._errors import Refused
from antiphase._noise.scale import canonical
from antiphase._noise.sizes import sizes
from antiphase.strategies import Buffers, Feedback, MovingSum, Recursion, Restart, Strategy, WholeMatrix, divided

# Standard deviations from 2^-e to 2^e: draws of all sizes then keep their digits, and none overflows.
LARGEST_EXPONENT = {"float32": 100, "float64": 960}
ROUNDING = {"float32": 2.0**-24, "float64": 2.0**-53}
TOLERANCE = 2.0**-8  # of z: how far rounding may move the noise, in standard deviations
FEW_STEPS, MOST_STEPS = 32, 256  # that the code is tried on
MOST_WHOLE = 1 << 16  # entries of N up to which noise that takes all of z is tried
LANES = 16  # independent z
HINTS = {
    "float32": "use float64, or scale the loss, and the clipping norm with it",
    "float64": "scale the strategy so that its columns have norms near 1, and calibrate noise_std to it",
}

# From z of the first rows of C, shape (rows, lanes), to the noise of so many steps, shape (steps, lanes).
Respond = Callable[[Array, int], Any]


def check_noise(
    strategy: Strategy, noise_std: float, dtype: np.dtype[Any], respond: Respond, *, clip_norm: float = 1.0
) -> None:
    """Refuse to go on where a source of noise does not make noise_std N z.

    Args:
        strategy: C as the plan has it.
        noise_std: likewise.
        dtype: of noise and state.
        respond: the source's own code, from z to the noise as it is added.
        clip_norm: what else the noise is multiplied by, in `dtype`.
    """
    check_sizes(strategy, noise_std, dtype, clip_norm=clip_norm)
    steps = _first_steps(strategy.recursion())
    if steps == 0:
        return
    z = _probes(sum(strategy.rows_at(t) for t in range(steps)))
    with np.errstate(all="ignore"):
        noise = np.asarray(respond(z, steps), dtype=np.float64) / clip_norm
        wrong = _departures(strategy, noise_std, noise, z)
    bad = np.flatnonzero(~(wrong <= TOLERANCE))
    if len(bad):
        raise _refused(strategy, dtype, f"in step {bad[0]} it departs from float64 algebra by {wrong[bad[0]]:.2g} of z")


def check_sizes(strategy: Strategy, noise_std: float, dtype: np.dtype[Any], *, clip_norm: float = 1.0) -> None:
    """Refuse noise or state that leaves the range of the dtype, or loses its digits, anywhere in the run."""
    made = canonical(strategy, noise_std, dtype)
    found, high = sizes(made.strategy), 2.0 ** LARGEST_EXPONENT[dtype.name]
    low, std = 1.0 / high, made.noise_std
    for what, smallest, largest in (
        ("the clipping norm", clip_norm, clip_norm),
        ("the noise before it is multiplied by noise_std", found.smallest, max(found.largest, found.entry)),
        ("its standard deviation", std * found.smallest, std * found.largest),
        ("its standard deviation times clip_norm", clip_norm * std * found.smallest, clip_norm * std * found.largest),
    ):
        if not low <= smallest <= largest <= high:
            span = f"{smallest:.3g}" if smallest == largest else f"between {smallest:.3g} and {largest:.3g}"
            raise _refused(strategy, dtype, f"{what} is {span}, outside the range from {low:.2g} to {high:.2g}")
    lost = ROUNDING[dtype.name] * found.rounding
    if not lost <= TOLERANCE:
        why = f"C is ill-conditioned, and rounding moves the noise by up to {lost:.2g} of z"
        raise _refused(strategy, dtype, why, "choose a strategy whose inverse does not grow from step to step")


def _refused(strategy: Strategy, dtype: np.dtype[Any], why: str, hint: str = "") -> Refused:
    kind = type(strategy).__name__
    text = f"The noise of this {kind} plan cannot be made in {dtype.name}: {why}."
    return Refused(text, hint=hint or HINTS[dtype.name])


def _first_steps(recursion: Recursion) -> int:
    """How many steps to try: one more than the bands, so that every coefficient is used; 0 for none."""
    block = _block(recursion)
    if isinstance(block, WholeMatrix):
        return block.steps if block.steps * block.rows <= MOST_WHOLE else 0
    return min(recursion.steps, max(FEW_STEPS, _bands(block) + 1), MOST_STEPS)


def _block(recursion: Recursion) -> Recursion:
    """The recursion of one block of steps, without restarts."""
    return _block(recursion.inner) if isinstance(recursion, Restart) else recursion


def _bands(recursion: Recursion) -> int:
    """How many coefficients a step uses."""
    match recursion:
        case Feedback():
            return recursion.bands
        case MovingSum():
            return len(recursion.coefficients)
    return 1


def _probes(rows: int) -> Array:
    """z drawn once and for all, of numbers that float32 has."""
    drawn = np.random.Generator(np.random.Philox(key=2)).standard_normal((rows, LANES))
    return drawn.astype(np.float32).astype(np.float64)


def _departures(strategy: Strategy, noise_std: float, noise: Array, z: Array) -> Array:
    """How far the noise of each step is from N z: in units of z where C is square, else of the step's own noise.

    C / noise_std with z of standard deviation 1 is the same mechanism, and of the size of the noise, however large C
    and noise_std are. It owes nothing to the power of two that the source has scaled them by.
    """
    unit = divided(strategy, noise_std)
    if unit is None:
        unit, noise = canonical(strategy, noise_std, z.dtype).strategy, noise / noise_std
    encoded = _encoded(unit.recursion(), noise)
    if encoded is not None:
        return _deviations(encoded - z)
    stream, start, wanted = unit.noising_stream(), 0, np.empty_like(noise)
    for t in range(len(noise)):
        stop = start + unit.rows_at(t)
        wanted[t] = stream.step(z[start:stop])
        start = stop
    return _deviations(noise - wanted) / _deviations(wanted)


def _encoded(recursion: Recursion, noise: Array) -> Array | None:
    """C times the noise of the first steps; None where C is not square lower triangular.

    It should be z again. Unlike the difference from N z, that difference shows whether the digits of each step's own
    z are still there.
    """
    steps, encoded = np.arange(len(noise)), None
    match recursion:
        case Restart():
            block = recursion.inner.steps
            parts = [_encoded(recursion.inner, noise[i : i + block]) for i in range(0, len(noise), block)]
            whole = [part for part in parts if part is not None]
            encoded = np.concatenate(whole) if len(whole) == len(parts) else None
        case Feedback():
            encoded = recursion.block(steps, steps) @ noise
        case Buffers():
            lag = steps[:, None] - steps
            encoded = np.where(lag >= 0, recursion.coefficients(len(noise))[lag], 0.0) @ noise
        case MovingSum():
            from antiphase._kernels import solve_bands

            encoded = solve_bands(recursion.coefficients[None], noise)
    return encoded


def _deviations(rows: Array) -> Array:
    return np.sqrt(np.mean(rows**2, axis=1))
