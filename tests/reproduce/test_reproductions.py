"""The papers come out: how many numbers agree at least, and a reason beside each that does not."""

import pytest

from antiphase._reproduce import known, reproduce

# Name, least number of agreeing rows.
QUICK = {
    "multi-epoch-mf-table-3": 3,
    "multi-epoch-mf-table-6": 18,
    "multi-epoch-mf-figure-6": 2,
    "multi-epoch-mf-figure-14": 2,
    "bandmf-amplified-table-2": 8,
    "bandmf-amplified-table-4": 20,
    "bandmf-amplified-figure-9": 2,
    "scaling-bandmf-example-b1": 24,
    "blt-dp-ftrl-table-1": 8,
    "blt-dp-ftrl-table-2": 6,
    "blt-dp-ftrl-figure-8": 1,
}


def check(name: str, least: int, full: bool = False) -> None:
    result = reproduce(name, full)
    assert result.agreeing >= least
    assert [row.what for row in result.rows if row.agrees is False and not row.note] == []
    assert all(row.ours for row in result.rows)


@pytest.mark.parametrize("name", QUICK)
def test_quick(name):
    check(name, QUICK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(known().keys() - QUICK.keys()))
def test_the_others_in_their_quick_size(name):
    check(name, 0)


@pytest.mark.slow
def test_table_3_of_the_banded_paper():
    rows = reproduce("bandmf-amplified-table-3").rows[:110]
    near = sum(0.5 <= int(row.ours) / int(row.paper) <= 2.0 for row in rows)
    assert near >= 100
