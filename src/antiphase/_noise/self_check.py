"""Check, before the first step, that a run will add the noise of its plan.

There are two checks. The first computes, in float64, how large state and noise become over the whole run: both must
stay well within the range of the dtype. The second runs the code that will generate the noise on a known z, for the
first steps, and compares its output with float64 algebra. Neither needs model-sized memory, and both take only
milliseconds for ordinary strategies.
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

# Standard deviations must be between 2^-e and 2^e, so that draws of all sizes keep their digits and none overflows.
LARGEST_EXPONENT = {"float32": 100, "float64": 960}
ROUNDING = {"float32": 2.0**-24, "float64": 2.0**-53}
TOLERANCE = 2.0**-8  # largest rounding error of the noise, in standard deviations of z
FEW_STEPS, MOST_STEPS = 32, 256  # least and most steps that the code is tested on
MOST_WHOLE = 1 << 16  # largest N, in entries, that is tested if each step uses all of z
LANES = 16  # number of independent z
HINTS = {
    "float32": "use float64, or scale the loss and the clipping norm together",
    "float64": "scale the strategy so that its columns have norms near 1, and calibrate noise_std again",
}

# Maps z for the first rows of C, shape (rows, lanes), and a number of steps to their noise, shape (steps, lanes).
Respond = Callable[[Array, int], Any]


def check_noise(
    strategy: Strategy, noise_std: float, dtype: np.dtype[Any], respond: Respond, *, clip_norm: float = 1.0
) -> None:
    """Raise `Refused` if the code under test does not compute noise_std N z.

    Args:
        strategy: C as in the plan.
        noise_std: noise_std as in the plan.
        dtype: dtype of noise and state.
        respond: the code under test, which maps z to the noise that is added.
        clip_norm: factor that the noise is also multiplied by, in `dtype`.
    """
    check_sizes(strategy, noise_std, dtype, clip_norm=clip_norm)
    steps = _first_steps(strategy.recursion())
    if steps == 0:
        return
    z = _probes(sum(strategy.rows_at(t) for t in range(steps)))
    with np.errstate(all="ignore"):
        noise = np.asarray(respond(z, steps), dtype=np.float64) / clip_norm
        wrong = _relative_errors(strategy, noise_std, noise, z)
    bad = np.flatnonzero(~(wrong <= TOLERANCE))
    if len(bad):
        raise _refused(
            strategy, dtype, f"in step {bad[0]} it differs from float64 algebra by {wrong[bad[0]]:.2g} (relative)"
        )


def check_sizes(strategy: Strategy, noise_std: float, dtype: np.dtype[Any], *, clip_norm: float = 1.0) -> None:
    """Raise `Refused` if noise or state leaves the range of the dtype or loses digits anywhere in the run."""
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
        why = f"C is ill-conditioned, and rounding changes the noise by up to {lost:.2g} times z"
        raise _refused(strategy, dtype, why, "choose a strategy whose inverse does not grow from step to step")


def _refused(strategy: Strategy, dtype: np.dtype[Any], why: str, hint: str = "") -> Refused:
    kind = type(strategy).__name__
    text = f"The noise of this {kind} plan cannot be computed in {dtype.name}: {why}."
    return Refused(text, hint=hint or HINTS[dtype.name])


def _first_steps(recursion: Recursion) -> int:
    """Return the number of steps to test, more than there are bands where possible; 0 to skip the test."""
    block = _block(recursion)
    if isinstance(block, WholeMatrix):
        return block.steps if block.steps * block.rows <= MOST_WHOLE else 0
    return min(recursion.steps, max(FEW_STEPS, _bands(block) + 1), MOST_STEPS)


def _block(recursion: Recursion) -> Recursion:
    """Return the recursion of one block of steps, without restarts."""
    return _block(recursion.inner) if isinstance(recursion, Restart) else recursion


def _bands(recursion: Recursion) -> int:
    """Return the number of coefficients that a step uses."""
    match recursion:
        case Feedback():
            return recursion.bands
        case MovingSum():
            return len(recursion.coefficients)
    return 1


def _probes(rows: int) -> Array:
    """Return a fixed z whose entries are exact in float32."""
    drawn = np.random.Generator(np.random.Philox(key=2)).standard_normal((rows, LANES))
    return drawn.astype(np.float32).astype(np.float64)


def _relative_errors(strategy: Strategy, noise_std: float, noise: Array, z: Array) -> Array:
    """Return the relative error of each step's noise: in units of z for square C, otherwise of the step's noise.

    C / noise_std with z of standard deviation 1 is the same mechanism. Its values are about as large as the noise,
    whatever the scale of C and noise_std, and it does not depend on the power of two that `canonical` chose.
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
    """Return C times the noise of the first steps; None if C is not square and lower triangular.

    The result should equal z. Comparing with z, rather than with N z, shows whether each step's own z has kept its
    digits in the noise.
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
