"""Audits of a loop in NumPy: right loops are not flagged, and each planted mistake is found."""

import pytest

from tests.audit.engines.numpy_audits import PLANS, audit, bins_plan
from tests.audit.engines.planted_numpy import BUGS, made


@pytest.mark.parametrize("name", [*PLANS, "balls in bins"])
def test_right_loops_are_not_flagged(tmp_path, name):
    found = audit(tmp_path, PLANS.get(name) or bins_plan(), seed=2)
    assert found.findings == ()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if bug.slow else ()) for name, bug in BUGS.items()]
)
def test_a_planted_mistake_is_found(tmp_path, name):
    seen, findings = made(BUGS[name]).is_seen(tmp_path)
    assert seen, findings
