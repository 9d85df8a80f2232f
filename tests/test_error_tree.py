import numpy as np
import pytest

from antiphase import schedules
from antiphase._error.tree import full_tree_variances, online_tree_variances, stamped_tree_variances
from antiphase._errors import InvalidArgument
from antiphase._kernels.tree import full_moments, online_moments
from antiphase._workload import Momentum, PrefixSum, Workload
from antiphase.strategies import Stamped, Tree

DECODERS = {"online": (online_tree_variances, online_moments), "full": (full_tree_variances, full_moments)}


class Rough(Workload):
    """Any banded inverse, nothing smooth about it."""

    toeplitz_inverse = None

    def __init__(self, bands):
        self.bands = bands

    def check_steps(self, steps):
        assert steps > 0

    def inverse_bands(self, steps):
        rng = np.random.default_rng(steps)
        bands = 0.4 * rng.normal(size=(steps, self.bands))
        bands[:, 0] = 1.0 + rng.random(steps)
        return np.where(np.arange(steps)[:, None] >= np.arange(self.bands), bands, 0.0)


def workloads(n):
    rates = 0.1 + np.random.default_rng(n).random(n)
    return [
        PrefixSum(),
        Momentum(0.9),
        Momentum(0.9, weight_decay=0.2),
        Momentum(0.0, learning_rates=rates),
        Momentum(0.5, learning_rates=rates, weight_decay=0.3),
        Rough(1),
        Rough(2),
        Rough(5),
    ]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("n", [*range(1, 34), 64, 100])
def test_against_dense_algebra(n, decoder):
    tree = Tree(n, decoder=decoder)
    variances, moments = DECODERS[decoder]
    N = tree.noising()
    for workload in workloads(n):
        B = workload.matrix(n) @ N
        np.testing.assert_allclose(variances(tree, workload), (B**2).sum(axis=1), rtol=1e-10)
        bands = workload.inverse_bands(n)
        last = np.zeros((bands.shape[1] - 1, B.shape[1]))
        last[:n] = B[::-1][: len(last)]
        np.testing.assert_allclose(moments(bands)[1], last @ last.T, rtol=1e-9, atol=1e-12)


def test_online_prefix_sums_of_a_million_steps_have_a_closed_form():
    """The nodes in the binary representation of t, each with variance 2^l / (2^(l+1) - 1)."""
    n = 1_000_000
    t = np.arange(1, n)
    expected = sum((t >> level & 1) * 2.0**level / (2.0 ** (level + 1) - 1.0) for level in range(20))
    variances = online_tree_variances(Tree(n), PrefixSum())
    np.testing.assert_allclose(variances[:-1], expected, rtol=1e-9)


@pytest.mark.parametrize("decoder", DECODERS)
def test_against_dense_algebra_for_a_long_run(decoder):
    n = 1025
    workload = Momentum(0.95, learning_rates=schedules.linear(n))
    tree = Tree(n, decoder=decoder)
    B = workload.apply(tree.noising())
    np.testing.assert_allclose(DECODERS[decoder][0](tree, workload), (B**2).sum(axis=1), rtol=1e-9)


def test_full_decoder_of_a_long_run_against_single_rows():
    """a_t^T X^-1 a_t; with the leaves of z set to a_t, C^T z = a_t and so N z = X^-1 a_t."""
    n = 20_001
    workload = Momentum(0.95, learning_rates=schedules.linear(n))
    tree = Tree(n, decoder="full")
    variances = full_tree_variances(tree, workload)
    is_leaf = np.array([level == 0 for t in range(n) for level in range(Tree(n).rows_at(t))])
    np.testing.assert_array_equal(tree.multiply(np.arange(n))[is_leaf], np.arange(n))
    for t in (0, 1, 777, 8191, 8192, 16_384, n - 2, n - 1):
        row = transposed_row(workload, n, t)
        z = np.zeros(tree.rows)
        z[is_leaf] = row
        np.testing.assert_allclose(variances[t], row @ tree.solve(z), rtol=1e-9)


def transposed_row(workload, n, t):
    """Row t of A: A^-T a = e_t, backwards."""
    bands = workload.inverse_bands(n)
    a = np.zeros(n)
    for i in range(t, -1, -1):
        later = sum(bands[i + r, r] * a[i + r] for r in range(1, bands.shape[1]) if i + r < n)
        a[i] = (float(i == t) - later) / bands[i, 0]
    return a


@pytest.mark.parametrize("n", [2, 5, 16, 23, 40])
def test_full_decoder_is_never_worse(n):
    for workload in workloads(n):
        online = online_tree_variances(Tree(n), workload)
        full = full_tree_variances(Tree(n, decoder="full"), workload)
        assert (full <= online * (1 + 1e-12)).all()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("n", "repeats"), [(1, 1), (1, 6), (2, 3), (3, 4), (5, 1), (7, 3), (16, 2)])
def test_stamped_trees_against_dense_algebra(n, repeats, decoder):
    tree = Tree(n, decoder=decoder)
    N = Stamped(tree, repeats).noising()
    for workload in workloads(n * repeats):
        B = workload.matrix(n * repeats) @ N
        got = stamped_tree_variances(tree, repeats, workload)
        np.testing.assert_allclose(got, (B**2).sum(axis=1), rtol=1e-10)


# Choquette-Choo et al. 2023 (multi-epoch), Table 1: sens^2 ||B||_F^2, prefix sum, (k, b) = (20, 100), n = 2000.
STAMPS = [1, 2, 5, 10, 20]
ONLINE = ["5.8e+06", "3.3e+06", "2.1e+06", "2.0e+06", "2.1e+06"]
FULL = ["2.4e+06", "1.6e+06", "1.2e+06", "1.4e+06", "1.8e+06"]


def squared_sensitivity(strategy):
    """C >= 0, so the worst signs agree: the largest ||C 1_pi||^2 over the 100 residue classes."""
    patterns = np.tile(np.eye(100), (20, 1))
    return (strategy.multiply(patterns) ** 2).sum(axis=0).max()


def stamped_total(base, repeats):
    return sum((base + i * base[-1]).sum() for i in range(repeats))


def table_loss(decoder, repeats):
    tree = Tree(2000 // repeats, decoder=decoder)
    base = DECODERS[decoder][0](tree, PrefixSum())
    return squared_sensitivity(Stamped(tree, repeats)) * stamped_total(base, repeats)


@pytest.mark.parametrize(("repeats", "printed"), list(zip(STAMPS, ONLINE, strict=True)))
def test_table_1_online_honaker(repeats, printed):
    assert f"{table_loss('online', repeats):.1e}" == printed


@pytest.mark.parametrize(("repeats", "printed"), list(zip(STAMPS, FULL, strict=True)))
def test_table_1_optimal_decoder_honaker(repeats, printed):
    assert f"{table_loss('full', repeats):.1e}" == printed


@pytest.mark.parametrize("repeats", STAMPS)
def test_better_weights_in_the_last_row_would_gain_little(repeats):
    """With the least variance for the root, Table 1 would read 1.9e6 at 10 stamps; it prints 2.0e6."""
    n = 2000 // repeats
    best = online_tree_variances(Tree(n), PrefixSum())
    before = stamped_total(best, repeats)
    best[-1] = full_tree_variances(Tree(n, decoder="full"), PrefixSum())[-1]
    after = stamped_total(best, repeats)
    assert 0.98 * before < after <= before
    if repeats == 10:
        loss = squared_sensitivity(Stamped(Tree(n), repeats)) * after
        assert f"{loss:.1e}" == "1.9e+06"


@pytest.mark.parametrize("variances", [online_tree_variances, full_tree_variances])
def test_a_schedule_of_another_length_is_refused(variances):
    with pytest.raises(InvalidArgument, match="learning_rates"):
        variances(Tree(4), Momentum(0.9, learning_rates=np.ones(5)))
