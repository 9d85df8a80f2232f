"""The common direction."""

import numpy as np
import pytest

from antiphase._errors import AntiphaseError
from antiphase._montecarlo.split import split
from tests.montecarlo.cases import grams


@pytest.mark.parametrize("name", grams())
def test_the_parts_add_up_to_the_whole(name):
    gram = grams()[name]
    parts = split(gram)
    np.testing.assert_allclose(parts.rho + parts.rest, gram, atol=1e-12 * gram.max())
    assert np.linalg.eigvalsh(parts.rest)[0] > -1e-12


@pytest.mark.parametrize("name", ["orthogonal", "correlated", "sparse", "uneven", "one"])
def test_no_larger_common_part_is_possible(name):
    gram = grams()[name]
    parts = split(gram)
    assert np.linalg.eigvalsh(gram - 1.001 * parts.rho)[0] < 0.0


def test_singular_matrices():
    assert split(np.ones((4, 4))).rho == pytest.approx(1.0, abs=1e-9)
    assert split(np.kron(np.eye(3), np.ones((2, 2)))).rho == pytest.approx(1.0 / 3.0, abs=1e-9)
    assert split(grams()["a mode that is zero"]).rho == 0.0
    assert split(np.zeros((3, 3))).rho == 0.0


def test_an_indefinite_matrix_is_refused():
    with pytest.raises(AntiphaseError, match="eigenvalue"):
        split(np.array([[1.0, 2.0], [2.0, 1.0]]))


@pytest.mark.parametrize("name", ["orthogonal", "correlated", "sparse", "uneven", "one", "a mode that is zero"])
@pytest.mark.parametrize("exponent", [-440, -360, -200, 200, 440])
def test_the_scale_of_c_does_not_matter(name, exponent):
    """At scales of 1e-108 and below the rest was dropped, and samples exceeded their proved bound."""
    gram = grams()[name]
    scaled = split(np.ldexp(gram, 2 * exponent))
    np.testing.assert_allclose(
        np.ldexp(scaled.rho + scaled.rest, -2 * exponent), gram, atol=1e-12 * gram.max(), rtol=0.0
    )
