"""Mistakes planted in antiphase.flower, with both kinds of noise: in clipping, noise, and who took part."""

import numpy as np

from antiphase import Lattice
from antiphase.flower import DPFTRL
from tests.audit.engines.flower_audits import GOAL, audit, plan
from tests.audit.engines.models import CLIP
from tests.audit.engines.planted import Bug, patched

NOISE = "antiphase.flower._session.Session.noise"
EXACT_NOISE = "antiphase._run.run.Run.gradient_noise"
EXACT_SUM = "antiphase.flower._round.Lattice.add_contribution"
FLOAT = {"options": {"lattice": False}}
CLIENT, SERVER = "antiphase.flower._client.clip_factor", "antiphase.flower._round.clip_factor"


def scaled(factor):
    return lambda right: lambda self: [factor * part for part in right(self)]


def not_clipped(right):
    return lambda length, clip_norm: 1.0


def too_large(right):
    return lambda length, clip_norm: right(length, 1.05 * clip_norm)


def twice(right):
    return lambda total, arrays, factor: right(total, arrays, 2 * factor)


def scaled_integers(factor):
    return lambda right: lambda self, step: [np.rint(factor * part).astype(np.int64) for part in right(self, step)]


def by_another_lattice(factor):
    """Integers of a lattice with another norm, as if clipped to it."""

    def replaced(right):
        def add(self, totals, arrays, size=None):
            wider = Lattice(self.exponent, int(factor * self.norm), self.entries, self.fraction_bits)
            right(wider, totals, arrays, size)

        return add

    return replaced


def added_twice(right):
    def add(self, totals, arrays, size=None):
        for _ in range(2):
            right(self, totals, arrays, size)

    return add


def other_separation(steps):
    """A server that lets clients return sooner than the plan says. (Its record alone is not enough: clients refuse.)"""
    return lambda plan, directory, **options: DPFTRL(plan, directory, **{**options, "separation": steps})


BUGS = {
    "noise 5 % small": Bug(audit, patched((NOISE, scaled(0.95))), {"quiet": 1024, **FLOAT}, "noise: scale"),
    "noise divided by the goal twice": Bug(audit, patched((NOISE, scaled(1 / GOAL))), FLOAT, "noise: scale"),
    "noise not scaled by the clipping norm": Bug(audit, patched((NOISE, scaled(1 / CLIP))), FLOAT, "noise: scale"),
    "updates not clipped": Bug(audit, patched((CLIENT, not_clipped), (SERVER, not_clipped)), FLOAT, "size"),
    "updates clipped 5 % too large": Bug(
        audit, patched((CLIENT, too_large), (SERVER, too_large)), {"given": plan(0.01), **FLOAT}, "size"
    ),
    "updates added twice": Bug(audit, patched(("antiphase.flower._round.add_scaled", twice)), FLOAT, "size"),
    "lattice noise 5 % small": Bug(
        audit, patched((EXACT_NOISE, scaled_integers(0.95))), {"quiet": 1024}, "noise: scale"
    ),
    "lattice noise divided by the goal twice": Bug(
        audit, patched((EXACT_NOISE, scaled_integers(1 / GOAL))), {}, "noise: scale"
    ),
    "integers clipped 5 % too large": Bug(
        audit, patched((CLIENT, too_large), (EXACT_SUM, by_another_lattice(1.05))), {"given": plan(0.01)}, "size"
    ),
    "integers added twice": Bug(audit, patched((EXACT_SUM, added_twice)), {}, "size"),
    "separation off by one": Bug(audit, options={"strategy": other_separation(3)}, seen_by="participation: promise"),
    "separation not kept": Bug(audit, options={"strategy": other_separation(1)}, seen_by="participation: promise"),
}
