"""Exact draws of floor(N(0, sigma^2)): kernel against rational arithmetic, distribution, and access by address."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2, kstest, norm

from antiphase import Secret
from antiphase._kernels import exact_retries
from antiphase._noise.exact_exp import exp_minus
from antiphase._noise.exact_gaussian import TILE, ExactDraws, Trial, cell_width, exact_draw, row_field, tables_of
from antiphase._noise.leaves import named
from antiphase._noise.source import Aes, Simulation, leaf_keys

SIGMAS = [1, 2, 3, 5, 17, 255, 256, 1000, 123_457, 2**32, 2**40 + 12_345, 2**54]
ALPHA = 1e-9  # probability that a correct sampler fails a test; the draws are fixed, so a test that passes stays so


def keys(number=1):
    return leaf_keys(Secret.insecure(7), ("aes", "draws", "root", "int64"), named([(1000,)] * number))


def draws(sigma, count, row=0, start=0):
    out = np.empty(count, dtype=np.int64)
    ExactDraws(Aes(keys()), sigma).fill(0, row, start, out)
    return out


def probabilities(sigma, values):
    """P(floor(Z) = m), from SciPy's normal distribution; independent of the tables under test."""
    low = np.minimum(values, -values - 1)  # the same probability, on the side where the difference is accurate
    return norm.cdf((low + 1) / sigma) - norm.cdf(low / sigma)


@pytest.mark.parametrize("x", [Fraction(0), Fraction(1, 10**9), Fraction(1, 3), Fraction(7, 2), Fraction(1000, 7)])
@pytest.mark.parametrize("bits", [64, 192, 1000])
def test_exponentials_are_bracketed(x, bits):
    low, high = exp_minus(x, bits)
    with localcontext() as context:
        context.prec = 400
        exact = (-Decimal(x.numerator) / Decimal(x.denominator)).exp() * Decimal(2) ** bits
        assert Decimal(low) <= exact <= Decimal(high)
    assert high - low <= 3


@pytest.mark.parametrize("sigma", [1, 3, 300, 2**40 + 12_345])
def test_tables_are_the_floors_of_exact_probabilities(sigma):
    tables, width = tables_of(sigma), cell_width(sigma)
    with localcontext() as context:
        context.prec = 120
        h = Decimal(width) ** 2 / (2 * Decimal(sigma) ** 2)
        terms = [(-h * k * k).exp() for k in range(20 * max(sigma // width, 1))]
        total, so_far = sum(terms), Decimal(0)
        for k, (threshold, squeeze) in enumerate(tables.table.tolist()):
            so_far += terms[k]
            assert threshold <= so_far / total * 2**64 <= threshold + 1
            assert squeeze <= (-h * (2 * k + 1)).exp() * 2**64 <= squeeze + 2
    assert tables.table[-1, 0] == 2**64 - 1


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_kernel_agrees_with_rational_arithmetic(sigma):
    source = Aes(keys())
    made, count = draws(sigma, 3 * TILE, row=5), 3 * TILE
    first = np.empty(count * 24, dtype=np.uint8)
    source.words(0, row_field(5), 0, first)

    def chunk(i):
        def words(attempt, number):
            if attempt == number == 0:
                return tuple(first.view(np.uint64).reshape(-1, 3, TILE)[i // TILE, :, i % TILE].tolist())
            given = np.empty(32, dtype=np.uint8)
            source.words(0, row_field(5, attempt, number), 2 * i, given)
            return tuple(given.view(np.uint64).tolist()[:3])

        return words

    assert made.tolist() == [exact_draw(sigma, chunk(i)) for i in range(count)]


@pytest.mark.parametrize("sigma", [1, 3, 40, 256, 1000, 2**32 + 5, 2**50])
def test_the_kernel_decides_only_what_its_words_decide(sigma):
    """Words at and next to every kind of boundary: cells, integers, and acceptance."""
    random = np.random.default_rng(3)
    tables, width = tables_of(sigma), cell_width(sigma)
    h = Fraction(width**2, 2 * sigma**2)
    words = []
    cells = random.integers(0, len(tables.table) - 1, 60).tolist()
    for k in cells:
        before = int(tables.table[k - 1, 0]) if k else -1
        after = int(tables.table[k, 0])
        if after - before < 4:
            continue
        inside = (before + after) // 2
        for place in (0, 2**63 - 1, int(random.integers(0, 2**63)), *_integer_boundaries(random, width)):
            v = Fraction(place, 2**63)
            edge = exp_minus(h * v * (2 * k + v), 64)[0]
            words += [
                (inside, 2 * place + int(random.integers(0, 2)), min(max(edge + offset, 0), 2**64 - 1), 0)
                for offset in (-(2**22), -(2**14), -1, 0, 1, 2**14, 2**22)
            ]
        words += [(u, 2**63, 5, 0) for u in (before, before + 1, after - 1, after, after + 1) if 0 <= u < 2**64]
    words += [(2**64 - 1, 1, 0, 0), (0, 0, 0, 0), (0, 1, 0, 0)]
    given = np.array(words, dtype=np.uint64)
    out, found = np.empty(len(words), dtype=np.int64), np.empty(len(words), dtype=np.int64)
    exact_retries(given, tables.table, tables.guide, tables.width, tables.half_square, out, found)
    decided = 0
    for word, value, kind in zip(words, out.tolist(), found.tolist(), strict=True):
        if kind == 2:
            continue
        decided += 1
        for rest in ((0, 0, 0), (2**64 - 1,) * 3, (0, 2**64 - 1, 0), (2**64 - 1, 0, 2**64 - 1)):
            continued = [word[:3], rest, (12345, 678, 910), (1, 2, 3)]
            assert Trial(sigma, continued.__getitem__).draw() == (value if kind == 0 else None)
    assert decided > len(words) / 8


def _integer_boundaries(random, width):
    """63-bit places whose interval just touches, or just crosses, an integer."""
    j = int(random.integers(0, width))
    edge = -(-(j << 63) // width)
    return [min(max(edge + i, 0), 2**63 - 1) for i in (-1, 0)]


@pytest.mark.parametrize(("sigma", "count"), [(1, 30_000), (2, 40_000), (7, 150_000), (40, 1_000_000)])
def test_small_sigmas_have_exact_probabilities(sigma, count):
    """A chi-square test over single integers.

    Power: the test finds a sampler whose sigma is wrong by 5 %, or whose mean is wrong by 5 % of sigma, with a
    probability above 0.5, although a correct one fails with probability 1e-9. (The median of a noncentral chi-square is
    near its mean, which is compared with the limit below.) Rounding instead of floor is a shift of 1/2.
    """
    values = np.arange(-12 * sigma, 12 * sigma)
    exact = probabilities(sigma, values)
    found = np.bincount(draws(sigma, count, row=1) - values[0], minlength=len(values))
    keep = exact * count >= 10
    observed, expected = np.append(found[keep], count - found[keep].sum()), np.append(exact[keep], exact[~keep].sum())
    statistic = ((observed - count * expected) ** 2 / (count * expected)).sum()
    limit = chi2.isf(ALPHA, len(expected) - 1)
    assert statistic < limit
    for wrong in (probabilities(1.05 * sigma, values), _shifted(sigma, values, 0.05 * sigma)):
        other = np.append(wrong[keep], wrong[~keep].sum())
        noncentrality = count * ((other - expected) ** 2 / expected).sum()
        assert noncentrality + len(expected) - 1 > limit


def _shifted(sigma, values, shift):
    return norm.cdf((values + 1 - shift) / sigma) - norm.cdf((values - shift) / sigma)


def test_a_large_sigma_has_the_moments_tails_and_low_bits_of_a_normal():
    sigma, count = 2**32, 4_000_000
    z = draws(sigma, count, row=2)
    x = (z + 0.5) / sigma
    assert abs(x.mean()) < 6 / math.sqrt(count)
    for power, moment, variance in ((2, 1.0, 2.0), (4, 3.0, 96.0), (6, 15.0, 10_170.0)):
        assert abs((x**power).mean() - moment) < 6 * math.sqrt(variance / count), power
    for odd, variance in ((3, 15.0), (5, 945.0)):
        assert abs((x**odd).mean()) < 6 * math.sqrt(variance / count), odd
    assert kstest(x[:200_000], norm.cdf).pvalue > ALPHA
    for end in (3.0, 4.0, 4.5):
        expected = count * 2 * norm.sf(end)
        assert abs((np.abs(x) > end).sum() - expected) < 6 * math.sqrt(expected) + 3, end
    for shift in (0, 8, 16, 22):  # bits far below sigma are uniform
        observed = np.bincount((z >> shift) & 255, minlength=256)
        assert ((observed - count / 256) ** 2 / (count / 256)).sum() < chi2.isf(ALPHA, 255), shift
    lag = np.corrcoef(x[:-1], x[1:])[0, 1]
    assert abs(lag) < 6 / math.sqrt(count)


def test_access_by_address_equals_sequential_access():
    whole = draws(1000, 5000, row=3)
    for start, count in ((0, 1), (63, 2), (64, 64), (65, 700), (4999, 1), (1234, 3333)):
        assert np.array_equal(draws(1000, count, row=3, start=start), whole[start : start + count])
    assert not np.array_equal(draws(1000, 5000, row=4), whole)
    plate = np.empty((7, 11), dtype=np.int64)
    ExactDraws(Aes(keys()), 1000).fill_rows(0, 3, 130, 40, plate)
    assert np.array_equal(plate, [whole[130 + 40 * i : 141 + 40 * i] for i in range(7)])
    far = np.empty((3, 5), dtype=np.int64)
    ExactDraws(Aes(keys()), 1000).fill_rows(0, 3, 7, 1500, far)
    assert np.array_equal(far, [whole[7 + 1500 * i : 12 + 1500 * i] for i in range(3)])


def test_leaves_and_sources_have_their_own_draws():
    first, second, other = (np.empty(64, dtype=np.int64) for _ in range(3))
    both = ExactDraws(Aes(keys(2)), 2**20)
    both.fill(0, 0, 0, first)
    both.fill(1, 0, 0, second)
    ExactDraws(Simulation(keys(2)), 2**20).fill(0, 0, 0, other)
    assert len({tuple(first), tuple(second), tuple(other)}) == 3


def test_counter_fields_never_collide():
    fields = {row_field(r, a, c) for r in (0, 1, 2**40 - 1) for a in (0, 1, 2**11 - 1) for c in (0, 1, 2**12 - 1)}
    assert len(fields) == 27
    assert max(fields) < 2**63
    with pytest.raises(Exception, match="no random words"):
        row_field(2**40)


def test_draws_keep_their_bits():
    """Golden draws: a change would make the noise of stored runs unrepeatable."""
    assert draws(2**32, 4, row=9, start=70).tolist() == GOLDEN


GOLDEN = [-759491601, -913576883, 2144656726, 4805977689]
