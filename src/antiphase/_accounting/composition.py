"""Composition: the guarantee of several mechanisms on the same data."""

from __future__ import annotations

import math
from collections.abc import Sequence

from antiphase._accounting import loss_accountant
from antiphase._accounting.budget import check_delta
from antiphase._accounting.mechanism import Mechanism
from antiphase._accounting.poisson import FAILURE_SHARE
from antiphase._accounting.reduction import SMALLEST_MULTIPLIER
from antiphase._accounting.standard_mechanism import Gaussian, StandardMechanism
from antiphase._bound import Bound, Kind, worst_kind
from antiphase._check import invalid
from antiphase._errors import NotProved


def compose(mechanisms: Sequence[Mechanism], delta: float) -> Bound:
    """Return the epsilon of several mechanisms on the same data, such as the runs of a hyper-parameter search.

    The list of mechanisms, including noise levels, sampling rates and numbers of steps, must be fixed in advance. The
    gradients that a mechanism computes may depend on the results of earlier mechanisms. Each mechanism needs its own
    independent noise and sampling, so two runs with the same run id are not covered.

    **Guarantee**: holds under the adjacency of the mechanisms, which must be the same for all. Gaussian mechanisms
    compose exactly: the squares of their inverse noise multipliers add up. If some mechanisms use Poisson or fixed-size
    sampling, the distribution of the sum of privacy losses gives an upper bound. `BallsInBins` and
    `PoissonMinSeparation` are accounted for without amplification, at the worst set of steps for one example.

    Args:
        mechanisms: one or more mechanisms.
        delta: delta of the composition, between 0 and 1.

    >>> from antiphase import SingleParticipation, strategies
    >>> run = Mechanism(strategies.Identity(10), SingleParticipation(), noise_std=2.0)
    >>> round(compose([run] * 4, 1e-6).value, 4)
    4.8866

    Reference: Dong, Roth and Su 2019, Cor. 3.3; Zhu, Dong and Wang 2022, Thm 10.
    """
    target = check_delta("compose", delta)
    runs = _checked(mechanisms)
    releases = [run.reduction.release(run.noise_std) for run in runs]
    kind = worst_kind(kind for run in runs for kind in (run.reduction.theorem.kind, run.reduction.sensitivity.kind))
    for method in (_gaussian, _losses):
        found = method(releases, target)
        if found is not None:
            value, at_best, words, reference = found
            words = f"{words} of {len(runs)} mechanisms"
            if any(run.reduction.theorem.amplified for run in runs):
                words += ", without amplification by bins or min-separation"
            return Bound(value, worst_kind([kind, at_best]), words, reference)
    names = ", ".join(sorted({type(run.participation).__name__ for run in runs}))
    raise NotProved(
        f"No accountant composes {names} under {runs[0].adjacency} adjacency.",
        hint="compose mechanisms of one kind, or add their epsilons and deltas",
    )


Found = tuple[float, Kind, str, str] | None


def _gaussian(releases: Sequence[StandardMechanism], delta: float) -> Found:
    if not all(isinstance(release, Gaussian) for release in releases):
        return None
    multiplier = _combined([release.multiplier for release in releases])
    return Gaussian(multiplier).epsilon(delta), "exact", "analytic Gaussian", "Dong, Roth and Su 2019, Cor. 3.3"


def _combined(multipliers: Sequence[float]) -> float:
    """Return the noise multiplier of a composition, (sum of m^-2)^(-1/2), rounded down.

    The multipliers m are divided by the largest power of two that is at most the smallest m. The largest term m^-2 is
    then between 1/4 and 1, so it neither overflows nor underflows. Terms that underflow are smaller than the largest
    term by a factor of about 1e-300, so they do not matter.

    >>> round(_combined([2e200, 2e200, 1e300, 2e200, 2e200]) / 1e200, 12)
    1.0
    """
    unit = math.ldexp(1.0, math.frexp(min(multipliers))[1] - 1)
    total = math.fsum((multiplier / unit) ** -2 for multiplier in multipliers)
    return max(unit / math.sqrt(total) * (1.0 - 1e-15), SMALLEST_MULTIPLIER)


def _losses(releases: Sequence[StandardMechanism], delta: float) -> Found:
    found = [release.loss_part(FAILURE_SHARE * delta / len(releases)) for release in releases]
    parts = [part for part in found if part is not None]
    if len(parts) < len(releases):
        return None
    value = loss_accountant.epsilon([part for part, _ in parts], delta - sum(failure for _, failure in parts))
    return value, "upper", "privacy loss distribution", "Zhu, Dong and Wang 2022, Thm 10"


def _checked(mechanisms: Sequence[Mechanism]) -> list[Mechanism]:
    runs = list(mechanisms)
    if not runs or not all(isinstance(run, Mechanism) for run in runs):
        raise invalid(
            "compose", "mechanisms", "a list of at least one Mechanism", mechanisms, "pass one mechanism per run"
        )
    adjacencies = sorted({run.adjacency for run in runs})
    if len(adjacencies) > 1:
        raise NotProved(
            f"Mechanisms under different adjacencies do not compose: {', '.join(adjacencies)}.",
            hint="use the same adjacency for all of them",
        )
    return runs
