"""A strategy that was optimised for scalar contributions: to be looked at, not to train with."""

from __future__ import annotations

from typing import NoReturn, final

from antiphase import _check
from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._record import record
from antiphase.strategies import Strategy


@final
@record
class ScalarOnly(Strategy):
    """C that is best against contributions of one dimension, for comparison with what vectors allow.

    Signs can cancel in X where directions cannot, so that the sensitivity it was made for is not its sensitivity for
    gradients. Everything but `matrix` refuses: no sensitivity, error, stream or mechanism is made from it.

    Args:
        matrix: C.

    Reference: Choquette-Choo et al. 2023 (multi-epoch), Eq. 34 and App. H.2.
    """

    matrix: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", _check.array("ScalarOnly", "matrix", self.matrix, 2))

    @property
    def steps(self) -> int:  # type: ignore[override]
        """n."""
        return len(self.matrix)

    @property
    def memory_copies(self) -> int:
        """All earlier steps."""
        return self.steps

    def encoding_stream(self) -> NoReturn:
        """Refused."""
        self._refuse()

    def noising_stream(self) -> NoReturn:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotProved(
            "This strategy was optimised for scalar contributions; for gradients it is no better than others.",
            hint="use constraint='pattern' to train; strategies.Dense(solution.strategy.matrix) measures this one",
        )
