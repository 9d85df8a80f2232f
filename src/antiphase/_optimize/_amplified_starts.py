"""Strategies that are the best without amplification: where the search under amplification starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from antiphase._check import Array
from antiphase._optimize._blt import _strategy as blt_strategy
from antiphase._optimize._blt_loss import ClosedLoss
from antiphase._optimize._decays import clipped, to_points
from antiphase._optimize._newton import minimise
from antiphase._optimize._schema import Schema
from antiphase._optimize._solution import Limits
from antiphase._optimize._toeplitz import toeplitz_coefficients
from antiphase.strategies import Banded, Strategy, Toeplitz

if TYPE_CHECKING:
    from antiphase._optimize._amplified import Setting


def toeplitz_starts(setting: Setting, bands: int) -> list[Toeplitz]:
    """The best without amplification for 1, 2, 4, ... bands up to an epoch."""
    return [Toeplitz(_coefficients(setting, count), setting.steps) for count in _counts(setting, bands)]


def banded_starts(setting: Setting, bands: int) -> list[Banded]:
    """The same with columns of norm 1."""
    return [
        Banded(Toeplitz(_coefficients(setting, count), setting.steps, column_normalized=True).columns())
        for count in _counts(setting, bands)
    ]


def blt_starts(setting: Setting, buffers: int) -> tuple[list[Strategy], list[Array]]:
    """The best without amplification as if epochs had fewer steps: shorter memory, less of it shared between bins."""
    n, inverse = setting.steps, setting.workload.toeplitz_inverse
    used = np.array([1.0, -1.0]) if inverse is None else inverse
    points = []
    for steps in (n, *(length for length in (n // 8, n // 64) if length > 2 * buffers)):
        promise = _promise(setting, steps)
        logits = np.linspace(np.log(steps) + 1.0, -1.0, 2 * buffers)
        loss = ClosedLoss(steps, promise, used, setting.objective)
        points.append(minimise(loss, to_points(logits[None]), clipped, Limits())[0][0])
    return [blt_strategy(point, n) for point in points], points


def _counts(setting: Setting, bands: int) -> list[int]:
    widest = min(bands, setting.participation.steps_per_epoch)
    return sorted({*(1 << i for i in range(widest.bit_length())), widest})


def _coefficients(setting: Setting, bands: int) -> Array:
    promise = _promise(setting, setting.steps)
    return toeplitz_coefficients(setting.steps, promise, setting.workload, setting.objective, Limits(), bands)[0]


def _promise(setting: Setting, steps: int) -> Schema:
    separation = min(setting.participation.steps_per_epoch, steps)
    return Schema(separation, -(-steps // separation))
