"""Gaussian steps on samples of a fixed size, drawn without replacement: Renyi divergences under replace adjacency.

Not equivalent to Poisson sampling under zero-out adjacency: where the example is not in the sample another one is,
so the two data sets do not share the part of the mixture without the example.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from antiphase._accounting._release import Release
from antiphase._errors import NotProved

# Small orders serve large epsilon, large orders small epsilon; a bound holds at every order, so any choice is safe.
# Orders from 129 to 256 are slow in dp_accounting.
ORDERS = (1.25, 1.5, 1.75, *range(2, 33), 40, 48, 56, 64, 80, 96, 128, 257, 384, 512, 768, 1024)
MARGIN = 1e-9  # relative, for rounding in the divergences


@final
@dataclass(frozen=True)
class FixedSizeSampled(Release):
    """`count` Gaussian mechanisms, each on a uniformly random subset of `batch_size` out of `group` examples.

    Reference: Wang, Balle and Kasiviswanathan 2019, Thm 27; conversion: Canonne, Kamath and Steinke 2020, Prop. 12.
    """

    batch_size: int
    group: int
    count: int

    method = "Renyi divergence"

    def epsilon(self, delta: float) -> float:
        """The best over the orders."""
        return renyi_epsilon([self.renyi()], delta)

    def delta(self, epsilon: float) -> float:
        """The best over the orders."""
        from dp_accounting.rdp import compute_delta

        return min(1.0, float(compute_delta(ORDERS, _divergences([self.renyi()]), epsilon)[0]) * (1.0 + MARGIN))

    def dp_event(self) -> Any:
        """A self-composed SampledWithoutReplacementDpEvent, for the RDP accountant under REPLACE_ONE."""
        from dp_accounting import dp_event

        gaussian = dp_event.GaussianDpEvent(self.multiplier)
        sampled = dp_event.SampledWithoutReplacementDpEvent(self.group, self.batch_size, gaussian)
        return dp_event.SelfComposedDpEvent(sampled, self.count)

    def renyi(self) -> Any:
        """The event itself: the RDP accountant takes the multiplier as it stands, without the 2 of replace."""
        return self.dp_event()


def renyi_epsilon(events: Iterable[Any], delta: float) -> float:
    """An upper bound on the smallest epsilon >= 0 of events that the RDP accountant takes under replace."""
    from dp_accounting.rdp import compute_epsilon

    return float(compute_epsilon(ORDERS, _divergences(events), delta)[0])


def _divergences(events: Iterable[Any]) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(ORDERS, NeighboringRelation.REPLACE_ONE)
    for event in events:
        accountant.compose(event)
    divergences = accountant.rdp * (1.0 + MARGIN)
    # The conversion reads a divergence that is negative by rounding as epsilon = 0.
    if np.isnan(divergences).any() or (divergences < 0.0).any():
        raise NotProved(
            f"The Renyi divergences could not be computed: {divergences.tolist()}.",
            hint="use a noise multiplier nearer to 1",
        )
    return divergences
