"""Audits of antiphase.jax: right programs are not flagged, and each planted mistake is found."""

import pytest

from tests.audit.engines.jax_audits import audit, mesh
from tests.audit.engines.planted_jax import BUGS, made
from tests.audit.engines.planted_numpy import POISSON

RIGHT = {
    "host": {},
    "device": {"source": "device"},
    "host, sharded": {"mesh": mesh},
    "device, sharded": {"source": "device", "mesh": mesh},
    "poisson, microbatches": {"given": POISSON, "microbatch": 8},
}


SLOW = ("device, sharded", "poisson, microbatches")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in RIGHT])
def test_right_programs_are_not_flagged(tmp_path, name):
    options = {key: value() if value is mesh else value for key, value in RIGHT[name].items()}
    assert audit(tmp_path, seed=2, **options).findings == ()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if bug.slow else ()) for name, bug in BUGS.items()]
)
def test_a_planted_mistake_is_found(tmp_path, name):
    seen, findings = made(BUGS[name]).is_seen(tmp_path)
    assert seen, findings
