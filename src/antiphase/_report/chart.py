"""Chart data, with a text summary for screen readers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from antiphase._check import Array


@dataclass(frozen=True)
class Series:
    """One named line.

    Args:
        name: name in the legend.
        x, y: coordinates of the points.
        faint: whether to draw it in the background, without an entry in the legend.
    """

    name: str
    x: Array
    y: Array
    faint: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines that share their axes.

    Args:
        title: title of the chart.
        x_label, y_label: labels of the axes, with units.
        series: lines to draw.
        log_x, log_y: whether the axis is logarithmic.
        marks: vertical lines as (x, label), such as the step that a run has reached.
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
        """A description of the chart for screen readers."""
        clear = [s for s in self.series if not s.faint]
        lines = [f"{s.name}: from {s.y[0]:.4g} at {s.x[0]:g} to {s.y[-1]:.4g} at {s.x[-1]:g}" for s in clear]
        more = f" {len(self.series) - len(clear)} more in the background." if len(clear) < len(self.series) else ""
        return f"{self.y_label} against {self.x_label}. " + "; ".join(lines) + "." + more


def series(name: str, x: ArrayLike, y: ArrayLike, *, faint: bool = False) -> Series:
    """A line through the points that are finite."""
    across, up = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    kept = np.isfinite(across) & np.isfinite(up)
    return Series(name, across[kept], up[kept], faint)


def thinned(count: int, most: int = 256) -> Array:
    """At most `most` of the indices of `count` points, evenly spaced, including the first and the last.

    >>> thinned(10, 4).tolist()
    [0, 3, 6, 9]
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
