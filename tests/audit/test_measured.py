"""A measurement cannot be mistaken for a proved bound, nor combined with one."""

import json
import operator

import pytest

import antiphase as ap
from antiphase._report.measured import read_audit
from antiphase.audit import Audit, MeasuredLowerBound, StatisticalTest

BOUND = ap.Bound(2.0, "exact", "closed-form", "")
FOUND = MeasuredLowerBound(1.5, 1e-5, 0.95, "threshold", "none", 1000)


@pytest.mark.parametrize("act", [operator.lt, operator.le, operator.gt, operator.ge, operator.add, operator.sub])
@pytest.mark.parametrize("other", [BOUND, 1.0, FOUND])
def test_no_arithmetic_and_no_order(act, other):
    with pytest.raises(TypeError, match="measured"):
        act(FOUND, other)
    with pytest.raises(TypeError):
        act(other, FOUND)


def test_it_is_no_number_and_no_bound():
    with pytest.raises(TypeError):
        float(FOUND)
    assert not isinstance(FOUND, ap.Bound)
    assert FOUND != BOUND
    assert FOUND != 1.5


def test_json_shares_no_field_with_a_bound():
    fields = set(ap.to_json(FOUND)) & set(ap.to_json(BOUND))
    assert fields == {"type"}
    assert ap.from_json(json.loads(json.dumps(ap.to_json(FOUND)))) == FOUND


def test_a_plan_refuses_a_measurement_as_its_guarantee():
    from tests.audit.mechanisms import mechanism, plan_for

    plan = plan_for(mechanism("every step"))
    with pytest.raises((ap.AntiphaseError, AttributeError, TypeError)):
        ap.Plan(plan.problem, plan.mechanism, FOUND, error=1.0)


def test_exceeds_compares_with_a_claim_only():
    assert not FOUND.exceeds(BOUND)
    assert FOUND.exceeds(ap.Bound(1.4, "upper", "", ""))
    with pytest.raises(ap.InvalidArgument, match="a Bound"):
        FOUND.exceeds(1.4)


def test_a_test_departs_by_bonferroni():
    assert not StatisticalTest("noise", (("a", 0.006), ("b", 1.0)), 0.01, 10).departs
    assert StatisticalTest("noise", (("a", 0.004), ("b", 1.0)), 0.01, 10).departures == ("a",)


def test_an_audit_round_trips():
    test = StatisticalTest("noise", (("scale", 0.0),), 0.01, 10, 0.9)
    audit = Audit("x", BOUND, 1e-5, (FOUND,), (test,), ((0.1, 0.2),), ((0.1, 0.3),), 0.06, 1.0, ("remark",))
    assert ap.from_json(json.loads(json.dumps(ap.to_json(audit)))) == audit
    assert audit.findings == ("noise: scale departs from the claim.",)


def test_a_file_that_is_no_audit_is_named_with_one_hint():
    for data in (b'{"type": "no such thing"}', b"[1, 2", b"\xff"):
        with pytest.raises(ap.Corrupted, match="The audit cannot be read: ") as caught:
            read_audit(data)
        assert str(caught.value).count("hint:") == 1
