"""Check, before the first step, that a run will add the noise of its plan.

There are two checks. The first computes, in float64, how large state and noise become over the whole run. State and
noise must stay well within the range of the dtype. The second check passes known white noise z to the code that will
generate the noise, and compares the noise of the first steps with a float64 reference. Neither check needs model-sized
memory, and both take only milliseconds for ordinary strategies.
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

# Standard deviations must be between 2^-e and 2^e for these e, so that no draw overflows or becomes subnormal.
LARGEST_EXPONENT = {"float32": 100, "float64": 960}
ROUNDING = {"float32": 2.0**-24, "float64": 2.0**-53}
TOLERANCE = 2.0**-8  # largest rounding error of the noise, in standard deviations of z
FEW_STEPS, MOST_STEPS = 32, 256  # the code is tested on at least FEW_STEPS steps and at most MOST_STEPS
MOST_WHOLE = 1 << 16  # strategies that use all of z in each step are tested only if N has at most this many entries
LANES = 16  # number of independent samples of z
HINTS = {
    "float32": "use float64, or scale the loss and the clipping norm together",
    "float64": "scale the strategy so that its columns have norms near 1, and calibrate noise_std again",
}

# Maps the first rows of z, of shape (rows, lanes), and a number of steps to the noise of these steps, of shape
# (steps, lanes).
Respond = Callable[[Array, int], Any]


def check_noise(
    strategy: Strategy, noise_std: float, dtype: np.dtype[Any], respond: Respond, *, clip_norm: float = 1.0
) -> None:
    """Raise `Refused` if the code under test does not compute noise_std N z.

    Args:
        strategy: strategy of the plan.
        noise_std: noise_std of the plan.
        dtype: dtype of noise and state.
        respond: the code under test, which maps z to the noise that is added.
        clip_norm: clipping norm. `respond` multiplies the noise by it, in `dtype`.
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
            strategy,
            dtype,
            f"the noise of step {bad[0]} differs from the float64 reference by a relative error of {wrong[bad[0]]:.2g}",
        )


def check_sizes(strategy: Strategy, noise_std: float, dtype: np.dtype[Any], *, clip_norm: float = 1.0) -> None:
    """Raise `Refused` if noise or state exceeds the range of the dtype or loses digits at any step of the run."""
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
        why = f"C is ill-conditioned, and rounding changes z by up to {lost:.2g} standard deviations"
        raise _refused(strategy, dtype, why, "choose a strategy whose inverse does not grow from step to step")


def _refused(strategy: Strategy, dtype: np.dtype[Any], why: str, hint: str = "") -> Refused:
    kind = type(strategy).__name__
    text = f"The noise of this {kind} plan cannot be computed in {dtype.name}: {why}."
    return Refused(text, hint=hint or HINTS[dtype.name])


def _first_steps(recursion: Recursion) -> int:
    """Return the number of steps to test; 0 to skip the test.

    The number is larger than the number of bands, unless MOST_STEPS or the run is too short for that.
    """
    block = _block(recursion)
    if isinstance(block, WholeMatrix):
        return block.steps if block.steps * block.rows <= MOST_WHOLE else 0
    return min(recursion.steps, max(FEW_STEPS, _bands(block) + 1), MOST_STEPS)


def _block(recursion: Recursion) -> Recursion:
    """Return the recursion of one block of steps, without restarts."""
    return _block(recursion.inner) if isinstance(recursion, Restart) else recursion


def _bands(recursion: Recursion) -> int:
    """Return the number of bands of C for `Feedback`, and of C^-1 for `MovingSum`; 1 for other recursions."""
    match recursion:
        case Feedback():
            return recursion.bands
        case MovingSum():
            return len(recursion.coefficients)
    return 1


def _probes(rows: int) -> Array:
    """Return a fixed sample of z, of shape (rows, LANES), whose entries are exact in float32."""
    drawn = np.random.Generator(np.random.Philox(key=2)).standard_normal((rows, LANES))
    return drawn.astype(np.float32).astype(np.float64)


def _relative_errors(strategy: Strategy, noise_std: float, noise: Array, z: Array) -> Array:
    """Return the error of each step's noise.

    If C is square, the error is in standard deviations of z; otherwise it is relative to the step's noise. The
    reference is computed with C / noise_std and noise_std 1, which is the same mechanism. Its values are about as large
    as the noise, however C and noise_std are scaled. They do not depend on the power of two that `canonical` chose.
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

    The caller compares the result with z. Comparing the noise with N z instead would not show whether the noise of each
    step contains all digits of that step's z.
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
