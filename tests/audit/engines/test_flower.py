"""Audits of antiphase.flower: a right federation is not flagged, and each planted mistake is found."""

import pytest

from tests.audit.engines.flower_audits import audit
from tests.audit.engines.planted_flower import BUGS


def test_a_right_federation_is_not_flagged(tmp_path):
    assert audit(tmp_path, seed=2).findings == ()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if bug.slow else ()) for name, bug in BUGS.items()]
)
def test_a_planted_mistake_is_found(tmp_path, name):
    seen, findings = BUGS[name].is_seen(tmp_path)
    assert seen, findings
