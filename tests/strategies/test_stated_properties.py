"""What a strategy states about its matrix C agrees with the dense matrices C and N. Privacy depends on it.

The strategies are those of tests/catalog.py, for a few small numbers of steps and for 160 steps, at which small entries
and long columns matter. Variants have other arguments that the constructor accepts.
"""

from dataclasses import fields, replace

import numpy as np
import pytest

import antiphase as ap
from antiphase._record import fingerprint
from antiphase.strategies import Buffers, Feedback, Strategy, WholeMatrix
from antiphase.strategies._scale import times_power_of_two
from tests.catalog import every_long_variant, every_strategy, every_variant

SMALL, LONG = (1, 2, 3, 6, 12), 160
STRATEGIES = {f"{name}-{n}": strategy for n in (*SMALL, LONG) for name, strategy in every_strategy(n)}
VARIANTS = dict(every_variant(6)) | dict(every_long_variant(LONG))
ALL = STRATEGIES | VARIANTS


def dense(strategy: Strategy) -> np.ndarray:
    """Return C, computed by its encoding stream.

    `encoder` may use Fourier transforms, which leave tiny numbers in place of zeros.
    """
    stream = strategy.encoding_stream()
    return np.concatenate([stream.step(x) for x in np.eye(strategy.steps)])


def some_steps(strategy: Strategy) -> list[int]:
    n = strategy.steps
    return list(range(1, n + 1)) if n <= 12 else [1, 2, n // 2, n // 2 + 3, n - 1, n]


def close(a, b, scale=None) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11 * float(np.abs(b).max() if scale is None else scale))


@pytest.mark.parametrize("name", [*VARIANTS, *(name for name in STRATEGIES if name.endswith(f"-{LONG}"))])
def test_noising_is_a_left_inverse(name):
    """Relative to the norms, because some inverses grow with the steps; `test_contract.py` has the rest."""
    strategy = ALL[name]
    C, N = dense(strategy), strategy.noising()
    assert np.isfinite(C).all()
    assert np.abs(N @ C - np.eye(strategy.steps)).max() <= 1e-11 * np.linalg.norm(N) * np.linalg.norm(C)
    recursion = strategy.recursion()
    if isinstance(recursion, WholeMatrix) and recursion.is_ordinary:
        norms = np.linalg.norm(N, axis=1)
        assert 0.25 <= norms.min() <= norms.max() <= 4.0
    if isinstance(recursion, Buffers):
        assert ((recursion.decay >= 0.0) & (recursion.decay <= 1.0)).all()


@pytest.mark.parametrize("name", ALL)
def test_diagonals_and_columns(name):
    """One diagonal too few would amplify the sampling too much. Small entries count as well."""
    strategy = ALL[name]
    C, n = dense(strategy), strategy.steps
    lags = np.subtract.outer(np.arange(len(C)), np.arange(n))
    if strategy.diagonals is not None:
        assert len(C) == n
        assert not C[(lags < 0) | (lags >= strategy.diagonals)].any()
    column, bands = strategy.toeplitz_column(), strategy.band_columns()
    if column is not None:
        assert len(column) <= n
        padded = np.pad(column, (0, n - len(column)))
        assert len(C) == n
        close(C, np.where(lags >= 0, padded[np.maximum(lags, 0)], 0.0))
        assert not np.where(padded == 0.0, C[:, 0], 0.0).any()
    if bands is not None:
        assert (len(C), len(bands)) == (n, n)
        padded = np.pad(bands, ((0, 0), (0, n - bands.shape[1])))
        stated = np.where(lags >= 0, padded[np.arange(n)[None, :], np.maximum(lags, 0)], 0.0)
        close(C, stated)
        assert not np.where(stated == 0.0, C, 0.0).any()


@pytest.mark.parametrize("name", ALL)
def test_feedback_is_constant_only_if_all_columns_are_equal(name):
    """JAX and lattice noise then use the first row for every step; the other interpreters do not read it."""
    recursion = ALL[name].recursion()
    if isinstance(recursion, Feedback) and recursion.is_constant:
        columns, lags = np.ogrid[: recursion.steps, : recursion.bands]
        entries = np.where(columns + lags < recursion.steps, recursion.entry(columns, lags), recursion.table())
        np.testing.assert_array_equal(entries, np.broadcast_to(recursion.table(), entries.shape))


@pytest.mark.parametrize("name", ALL)
def test_feedback_uses_the_entries_that_are_stated(name):
    """To the last bit: the sensitivity is that of the stated entries, and no rounding rule counts a difference."""
    strategy = ALL[name]
    recursion = strategy.recursion()
    if not isinstance(recursion, Feedback) or recursion.scales is not None:
        return
    n, column, bands = strategy.steps, strategy.toeplitz_column(), strategy.band_columns()
    used = recursion.block(np.arange(n), np.arange(n))
    if column is not None:
        lags = np.subtract.outer(np.arange(n), np.arange(n))
        padded = np.pad(column, (0, n - len(column)))
        np.testing.assert_array_equal(used, np.where(lags >= 0, padded[np.maximum(lags, 0)], 0.0))
    for r in range(0 if bands is None else bands.shape[1]):
        np.testing.assert_array_equal(np.diag(used, -r), bands[: n - r, r])


@pytest.mark.parametrize("name", ALL)
def test_a_stored_column_has_its_length_for_any_number_of_steps(name):
    strategy = ALL[name]
    if strategy.stores_column and strategy.is_extensible:
        assert len(replace(strategy, steps=1 << 40).toeplitz_column()) == len(strategy.toeplitz_column())


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_gram(name, absolute):
    strategy = ALL[name]
    C = np.abs(dense(strategy)) if absolute else dense(strategy)
    G, X = strategy.gram(absolute=absolute), C.T @ C
    close(G.dense(), X)
    assert not np.abs(np.triu(X, G.bands)).max(initial=0.0) > 1e-14 * np.abs(X).max()


@pytest.mark.parametrize("name", ALL)
def test_first_has_every_row_that_the_first_steps_complete(name):
    """Their columns, too: what is left out of the first steps is not accounted for."""
    strategy = ALL[name]
    C = dense(strategy)
    for t in some_steps(strategy):
        part = strategy.first(t)
        assert t <= part.steps <= strategy.steps
        rows = [row[:t] for row in C if not row[t:].any()]
        found = dense(part)[:, :t]
        for row in rows:
            assert np.abs(found - row).max(axis=1).min() <= 1e-11 * np.abs(C).max()
    whole = strategy.first(strategy.steps)
    close(dense(whole), C)


@pytest.mark.parametrize("name", ALL)
def test_first_is_monotone_only_if_it_is_proved(name):
    """No entry is negative, or the Gram matrix of fewer steps is a block of that of all steps."""
    strategy = ALL[name]
    C = dense(strategy)
    if not strategy.first_is_monotone or C.min() >= 0.0:
        return
    X = C.T @ C
    for t in some_steps(strategy):
        part = dense(strategy.first(t))[:, :t]
        close(part.T @ part, X[:t, :t], np.abs(X).max())


@pytest.mark.parametrize("name", ALL)
def test_an_extended_run_has_the_same_noise_so_far(name):
    """Noise that was released belongs to the longer run, so it must be the noise that the longer run makes.

    The last step of a tree completes the nodes above it, so a tree is extended before its last step.
    """
    strategy = ALL[name]
    if not strategy.is_extensible:
        return
    n = strategy.steps
    kept, N = n - (strategy.tree_height is not None), strategy.noising()
    for steps in (n + 1, 2 * n + 1):
        longer = replace(strategy, steps=steps)
        assert longer.is_extensible
        M = longer.noising()
        rows = sum(strategy.rows_at(t) for t in range(kept))
        assert rows == sum(longer.rows_at(t) for t in range(kept))
        close(M[:kept, :rows], N[:kept, :rows], np.abs(N).max())
        assert not M[:kept, rows:].any()
        assert not N[:kept, rows:].any()


@pytest.mark.parametrize("name", ALL)
def test_causal_noise_uses_no_row_that_a_later_step_completes(name):
    strategy = ALL[name]
    C, N = dense(strategy), strategy.noising()
    completed = np.array([np.flatnonzero(row)[-1] if row.any() else 0 for row in C])
    later = completed[None, :] > np.arange(strategy.steps)[:, None]
    assert not strategy.is_causal or not N[later].any()
    assert (np.diff(completed[C.any(axis=1)]) >= 0).all()  # the order of the rows


@pytest.mark.parametrize("name", ALL)
def test_blocks_repeat_along_the_diagonal(name):
    strategy = ALL[name]
    assert strategy.blocks * strategy.block.steps == strategy.steps
    np.testing.assert_array_equal(np.kron(np.eye(strategy.blocks), dense(strategy.block)), dense(strategy))


@pytest.mark.parametrize("name", ALL)
def test_a_tree_height_is_stated_only_for_the_nodes_of_a_tree(name):
    strategy = ALL[name]
    height, n = strategy.tree_height, strategy.steps
    if height is None:
        return
    nodes = [(level, node) for level in range(height + 1) for node in range(-(-n >> level))]
    rows = [((np.arange(n) >> level) == node).astype(float) for level, node in nodes]
    assert -(-n >> height) == 1
    assert sorted(map(tuple, dense(strategy))) == sorted(map(tuple, rows))


@pytest.mark.parametrize("name", ALL)
def test_scale(name):
    """Noise is made from 2^k C and 2^k noise_std; with normalised columns, C and noise_std stay."""
    strategy = ALL[name]
    C = dense(strategy)
    norms = np.linalg.norm(C, axis=0)
    if strategy.has_unit_columns:
        np.testing.assert_allclose(norms, 1.0, rtol=1e-12)
    if strategy.rescaled(np.copy, np.copy) is None:
        assert strategy.scale_exponents() == (0, 0)
        near = 0.25 <= norms.min() <= norms.max() <= 1e6
        assert near, f"override scale_exponents and rescaled: C has columns of norms {norms.min()} to {norms.max()}"
        return
    close(dense(times_power_of_two(strategy, 3)), C if strategy.has_unit_columns else 8.0 * C)
    low, high = strategy.scale_exponents()
    triangular = len(C) == C.shape[1] and not np.triu(C, 1).any()
    if strategy.has_unit_columns or strategy.blocks > 1:
        return
    found = np.frexp(np.diag(C) if triangular else np.abs(C).max())[1]
    assert low - 2 <= found.min()  # within a factor of four
    assert found.max() <= high + 2


def wrong_values(value) -> list:
    match value:
        case bool():
            return []
        case int():
            return [0, -1, 2.5, True, "3", None, float("nan"), 1 << 60]
        case float():
            return [float("nan"), float("inf"), -float("inf"), "0.5", None, True, 1e300]
        case str():
            return ["unheard", 3, None]
        case Strategy():
            return [None, "identity", 3]
        case np.ndarray():
            wrong = [value.copy(), value.copy()]
            wrong[0][..., -1], wrong[1][..., 0] = np.nan, np.inf
            return [*wrong, value[None], value[:0], "text", None]
    raise AssertionError(f"add a case for fields of {type(value).__name__}, here and in tests/catalog.py")


def refused(strategy: Strategy, changed: dict) -> bool:
    try:
        replace(strategy, **changed)
    except ap.InvalidArgument as error:
        return bool(error.hint)
    return False


FIELDS = [(name, field.name) for name, strategy in every_strategy(6) for field in fields(strategy)]


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_wrong_arguments_are_refused(name, field):
    strategy = dict(every_strategy(6))[name]
    for value in wrong_values(getattr(strategy, field)):
        assert refused(strategy, {field: value}), f"{type(strategy).__name__} accepts {field}={value!r}"


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_numbers_of_numpy_make_the_same_record(name, field):
    """Keys of noise are derived from the fingerprint."""
    strategy = dict(every_strategy(6))[name]
    value = getattr(strategy, field)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        same = replace(strategy, **{field: np.asarray(value)[()]})
        assert same == strategy
        assert fingerprint(same) == fingerprint(strategy)
        assert type(getattr(same, field)) is type(value)
