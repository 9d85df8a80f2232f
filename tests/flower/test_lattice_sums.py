"""Integer sums of updates: whatever a client sends, it moves them by at most the integer clipping norm."""

import gc
import math
import tracemalloc
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import antiphase as ap
from antiphase._federated import Participants
from antiphase.flower import _round
from antiphase.flower._round import ReplyRules, Round
from antiphase.flower._wire import ARRAYS, TAG, Answer, to_array_record, to_record

NODE, CLIP = 7, 0.7
WIDE = 40_000


def lattice(exponent=-40):
    return ap.Lattice(exponent, math.floor(Fraction(CLIP) / Fraction(2) ** exponent), WIDE + 4)


def shapes(entries):
    return {"w": (entries // 2, 2), "b": (3,), "s": ()}


def reply(number, update):
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    asked = Message(RecordDict(), NODE, "train")
    asked.metadata.__dict__["_message_id"] = f"m{number}"
    answer = to_record(Answer(f"client {number}", 0, "update", -1, [], []))
    return Message(RecordDict({ARRAYS: to_array_record(update), TAG: answer}), reply_to=asked)


def total_of(given, grid, dtype, zero_above=None):
    """The sum of a round as one list of Python integers, and the counts."""
    model = {name: np.zeros(value.shape, dtype) for name, value in given[0].items()}
    current = Round(ReplyRules(0, 1, 1, CLIP, zero_above, False), model, Participants(), Counter(), None, grid)
    current.asked = {f"m{i}": NODE for i in range(len(given))}
    for i, update in enumerate(given):
        message = reply(i, update)
        current.add_reply(message, current.answer(message), f"client {i}")
    return [int(x) for array in current.total.values() for x in np.ravel(array)], current


def filled(entries, dtype, values):
    """An update with these numbers in turn."""
    made, at = {}, 0
    for name, shape in shapes(entries).items():
        size = math.prod(shape)
        made[name] = np.asarray([values(at + i) for i in range(size)], dtype).reshape(shape)
        at += size
    return made


def honest(entries, dtype, count=3):
    rng = np.random.default_rng(1)
    return [filled(entries, dtype, lambda i: rng.standard_normal() * 0.1) for _ in range(count)]


def hostile(dtype):
    """Updates that try to be more than they may be, by name."""
    info, inf = np.finfo(dtype), math.inf
    one = 1.0 / math.sqrt(24)
    return {
        "nan": lambda i: math.nan if i == 5 else 0.1,
        "all nan": lambda i: math.nan,
        "infinite": lambda i: inf if i == 0 else 0.0,
        "both infinities": lambda i: inf if i % 2 else -inf,
        "largest": lambda i: info.max,
        "largest, one of them negative": lambda i: -info.max if i == 2 else info.max,
        "smallest": lambda i: info.smallest_subnormal,
        "subnormal": lambda i: info.tiny / 3,
        "huge and tiny": lambda i: info.max if i == 0 else info.smallest_subnormal,
        "huge and one": lambda i: info.max if i == 0 else 1.0,
        "overflowing squares": lambda i: math.sqrt(float(info.max)) * 2,
        "just above": lambda i: CLIP * one * (1 + 1e-6),
        "at the norm": lambda i: CLIP * one,
        "one entry": lambda i: -CLIP if i == 0 else 0.0,
        "one entry above": lambda i: float(np.nextafter(CLIP, 1)) if i == 0 else 0.0,
        "large": lambda i: (-1) ** i * 1e6,
        "negative zero": lambda i: -0.0,
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", hostile(np.float32))
def test_neighbouring_sums_differ_by_at_most_the_norm(dtype, name):
    others, grid = honest(20, dtype), lattice()
    with np.errstate(all="ignore"):
        update = filled(20, dtype, hostile(dtype)[name])
    without, _ = total_of(others, grid, dtype)
    found, current = total_of([others[0], update, *others[1:]], grid, dtype)
    moved = [a - b for a, b in zip(found, without, strict=True)]
    size = sum(x * x for x in moved)
    assert size <= grid.norm**2
    assert len(current.clients) == 4
    if "nan" in name or "infini" in name:
        assert moved == [0] * 24
        assert current.counts["not-finite"] == 1
    elif max(float(np.abs(v).max()) for v in update.values()) > 1:
        assert size > (0.999999 * grid.norm) ** 2  # clipped, not dropped
        assert current.counts["clipped"] == 1
    with np.errstate(all="ignore"):
        replaced, _ = total_of([others[0], {n: -v for n, v in update.items()}, *others[1:]], grid, dtype)
    assert sum((a - b) ** 2 for a, b in zip(found, replaced, strict=True)) <= 4 * grid.norm**2


def test_a_norm_that_floats_make_too_small_is_checked_in_integers():
    """Squares of 1e-8 are lost next to 1 in float64, so the computed norm is below the true one."""
    grid, dtype = lattice(-45), np.float64
    update = filled(WIDE, dtype, lambda i: 1.0 if i == 0 else 1e-8)
    squares = np.concatenate([np.ravel(v) for v in update.values()]) ** 2
    lost = 0.0
    for square in squares:
        lost += square
    assert lost == 1.0
    factor = grid.norm / math.sqrt(lost)
    naive = sum(math.floor(Fraction(float(x)) * Fraction(factor)) ** 2 for v in update.values() for x in np.ravel(v))
    assert naive > grid.norm**2  # what a clip by the computed norm would add
    found, current = total_of([update], grid, dtype)
    size = sum(x * x for x in found)
    assert (1 - 1e-9) * grid.norm**2 < size <= grid.norm**2
    assert current.counts == {"accepted": 1, "clipped": 1}
    together, _ = total_of([update, *honest(WIDE, dtype, 1)], grid, dtype)  # the first attempt is undone exactly
    alone, _ = total_of(honest(WIDE, dtype, 1), grid, dtype)
    assert [a - b for a, b in zip(together, alone, strict=True)] == found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_are_those_of_contributions_and_of_rational_numbers(dtype):
    rng, grid = np.random.default_rng(3), lattice()
    given = [
        filled(20, dtype, lambda i, s=scale: rng.standard_normal() * s)
        for scale in (1e-30, 1e-9, 0.01, 0.05, 0.3, 10.0, 1e20)
    ]
    found, _ = total_of(given, grid, dtype)
    parts = [grid.contribution(update.values()) for update in given]
    flat = [[int(x) for array in part for x in np.ravel(array)] for part in parts]
    assert found == [sum(column) for column in zip(*flat, strict=True)]
    for update, integers in zip(given, flat, strict=True):
        values = [Fraction(float(x)) for v in update.values() for x in np.ravel(v)]
        if sum(x * x for x in values) > Fraction(CLIP) ** 2 * Fraction(9999, 10000):
            continue  # clipped
        units = [x / Fraction(2) ** grid.exponent for x in values]
        assert integers == [math.floor(x) if x >= 0 else math.ceil(x) for x in units]


def test_updates_with_an_entry_above_the_limit_count_as_zero():
    dtype, grid = np.float32, lattice()
    update = filled(20, dtype, lambda i: 100.0 if i == 3 else 0.0)
    found, current = total_of([update], grid, dtype, zero_above=100.0)
    assert found == [0] * 24
    assert current.counts == {"too-large": 1}
    _, current = total_of([update], grid, dtype, zero_above=200.0)
    assert current.counts == {"accepted": 1, "clipped": 1}


def test_after_an_interruption_there_is_no_sum_to_release(monkeypatch):
    dtype, grid = np.float64, lattice()
    _, current = total_of(honest(20, dtype, 1), grid, dtype)

    def interrupted(self, totals, arrays, size):
        totals[0][:] = 1 << 60  # half of it
        raise KeyboardInterrupt

    monkeypatch.setattr(_round.Lattice, "add_contribution", interrupted)
    current.asked["m1"] = NODE
    message = reply(1, honest(20, dtype, 1)[0])
    with pytest.raises(KeyboardInterrupt):
        current.add_reply(message, current.answer(message), "another client")
    assert current.total == {}


def test_sums_need_no_memory_for_each_update():
    dtype, grid, entries = np.float32, replace(lattice(-34), norm=1 << 33), 200_000
    rng = np.random.default_rng(0)
    update = {n: np.asarray(rng.standard_normal(s) * 1e-3, dtype) for n, s in shapes(entries).items()}
    grid = replace(grid, entries=entries + 4)
    model = {name: np.zeros(value.shape, dtype) for name, value in update.items()}
    peaks = []
    for count in (2, 20):
        current = Round(ReplyRules(0, 1, 1, CLIP, None, False), model, Participants(), Counter(), None, grid)
        current.asked = {f"m{i}": NODE for i in range(count)}
        messages = (reply(i, update) for i in range(count))
        tracemalloc.start()
        for i, message in enumerate(messages):
            current.add_reply(message, current.answer(message), f"client {i}")
            del message
            gc.collect()  # messages of Flower refer to themselves
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    one = 4 * entries
    assert peaks[1] - peaks[0] < 0.2 * one
    assert peaks[0] < 6 * one  # messages of the network, and no integer copy of an update
