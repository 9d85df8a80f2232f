"""Mistakes planted in antiphase.flower: in clipping, noise, and the record of who took part."""

from antiphase.flower import DPFTRL
from tests.audit.engines.flower_audits import GOAL, audit, plan
from tests.audit.engines.models import CLIP
from tests.audit.engines.planted import Bug, patched

NOISE = "antiphase.flower._session.Session.noise"
CLIENT, SERVER = "antiphase.flower._client.clip_factor", "antiphase.flower._round.clip_factor"


def scaled(factor):
    return lambda right: lambda self: [factor * part for part in right(self)]


def not_clipped(right):
    return lambda length, clip_norm: 1.0


def too_large(right):
    return lambda length, clip_norm: right(length, 1.05 * clip_norm)


def twice(right):
    return lambda total, arrays, factor: right(total, arrays, 2 * factor)


def other_separation(steps):
    """A server that lets clients return sooner than the plan says. (Its record alone is not enough: clients refuse.)"""
    return lambda plan, directory, **options: DPFTRL(plan, directory, **{**options, "separation": steps})


BUGS = {
    "noise 5 % small": Bug(audit, patched((NOISE, scaled(0.95))), {"quiet": 1024}, "noise: scale"),
    "noise divided by the goal twice": Bug(audit, patched((NOISE, scaled(1 / GOAL))), {}, "noise: scale"),
    "noise not scaled by the clipping norm": Bug(audit, patched((NOISE, scaled(1 / CLIP))), {}, "noise: scale"),
    "updates not clipped": Bug(audit, patched((CLIENT, not_clipped), (SERVER, not_clipped)), {}, "size"),
    "updates clipped 5 % too large": Bug(
        audit, patched((CLIENT, too_large), (SERVER, too_large)), {"given": plan(0.01)}, "size"
    ),
    "updates added twice": Bug(audit, patched(("antiphase.flower._round.add_scaled", twice)), {}, "size"),
    "separation off by one": Bug(audit, options={"strategy": other_separation(3)}, seen_by="participation: promise"),
    "separation not kept": Bug(audit, options={"strategy": other_separation(1)}, seen_by="participation: promise"),
}
