"""A line chart as data: what is drawn, and what a reader without eyes for it is told."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from antiphase._check import Array


@dataclass(frozen=True)
class Series:
    """One named line through points.

    Args:
        name: for the legend.
        x, y: the points.
        faint: drawn in the background and left out of the legend.
    """

    name: str
    x: Array
    y: Array
    faint: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines over common axes.

    Args:
        title: what is shown.
        x_label, y_label: with units.
        series: the lines.
        log_x, log_y: logarithmic axes.
        marks: vertical lines, such as the step that a run has reached, each with its label.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    marks: tuple[tuple[float, str], ...] = ()

    @property
    def summary(self) -> str:
        """The chart in words, for a screen reader."""
        clear = [s for s in self.series if not s.faint]
        lines = [f"{s.name}: from {s.y[0]:.4g} at {s.x[0]:g} to {s.y[-1]:.4g} at {s.x[-1]:g}" for s in clear]
        more = f" {len(self.series) - len(clear)} more in the background." if len(clear) < len(self.series) else ""
        return f"{self.y_label} against {self.x_label}. " + "; ".join(lines) + "." + more


def series(name: str, x: ArrayLike, y: ArrayLike, *, faint: bool = False) -> Series:
    """A line, without the points that are not finite."""
    across, up = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    kept = np.isfinite(across) & np.isfinite(up)
    return Series(name, across[kept], up[kept], faint)


def thinned(count: int, most: int = 256) -> Array:
    """At most `most` indices of `count` points, evenly spaced, the first and the last among them.

    >>> thinned(10, 4).tolist()
    [0, 3, 6, 9]
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
