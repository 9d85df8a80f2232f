"""An axis: from numbers to places on the page, and where its ticks stand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from antiphase._check import Array

TICKS = 5
DECADES = 6


@dataclass(frozen=True)
class Axis:
    """The numbers from low to high, linear or logarithmic, between two places on the page."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def place(self, value: float) -> float:
        """Where a number stands."""
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round numbers within the range."""
        return _decades(self.low, self.high) if self.log else _round_steps(self.low, self.high)


def axis(values: list[Array], start: float, end: float, log: bool) -> Axis:
    """The axis that shows all values; a linear one starts at 0 where that costs little."""
    low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    if log:
        return Axis(low / 1.1, high * 1.1, start, end, True) if high > low else Axis(low / 2, low * 2, start, end, True)
    if 0.0 <= low < 0.5 * high:
        low = 0.0
    if high == low:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    return Axis(low, high + 0.03 * (high - low), start, end, False)


def tick_text(value: float) -> str:
    """A short number.

    >>> tick_text(0.0), tick_text(2000.0), tick_text(1e-5), tick_text(0.25)
    ('0', '2,000', '1e-5', '0.25')
    """
    size = abs(value)
    if size == 0.0:
        return "0"
    if size < 1e-3 or size >= 1e6:
        digits, _, power = f"{value:.3g}".partition("e")
        return f"{digits}e{int(power)}" if power else digits
    return f"{value:,.6g}" if size < 1000 else f"{value:,.0f}"


def _round_steps(low: float, high: float) -> list[float]:
    raw = (high - low) / TICKS
    unit = 10.0 ** math.floor(math.log10(raw))
    step = unit * next(m for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * unit >= raw)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, -(-(last - first) // DECADES))
    parts = (1.0,) if last - first > 2 else (1.0, 2.0, 5.0)
    candidates = [m * 10.0**e for e in range(first, last + 1, every) for m in parts]
    return [v for v in candidates if low <= v <= high]
