"""Raw client metrics, for those who release them: a plain mean, without noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr.app import MetricRecord


def mean_metrics(records: Sequence[MetricRecord]) -> MetricRecord | None:
    """The mean of each number that all records have; None without records.

    **Guarantee**: none. These numbers are not differentially private.

    >>> dict(mean_metrics([MetricRecord({"loss": 1.0}), MetricRecord({"loss": 2.0, "steps": 7})]))
    {'loss': 1.5}
    """
    if not records:
        return None
    shared = set.intersection(*(set(record) for record in records))
    means: dict[str, Any] = {}
    for name in sorted(shared):
        values = [value for record in records if isinstance(value := record[name], (int, float))]
        if len(values) == len(records):
            means[name] = sum(values) / len(values)
    return MetricRecord(means)
