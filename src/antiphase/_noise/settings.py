"""What a stream is, apart from its plan, its secret and the step it has come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike

from antiphase import _check
from antiphase._noise.leaves import Leaf, Leaves, named
from antiphase._noise.source import SourceName
from antiphase._record import from_json, to_json


@final
@dataclass(frozen=True)
class Settings:
    """Leaves, run id, dtype and how the noise is made."""

    leaves: dict[str, Leaf]
    run_id: str
    dtype: np.dtype[Any]
    source: SourceName
    lookahead: int | None
    regenerate: bool

    def to_header(self) -> dict[str, Any]:
        """As plain JSON."""
        leaves = [[name, to_json(leaf)] for name, leaf in self.leaves.items()]
        return {**vars(self), "leaves": leaves, "dtype": self.dtype.name}

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> Settings:
        """The inverse of `to_header`."""
        kept = {name: header[name] for name in ("run_id", "source", "lookahead", "regenerate")}
        leaves = {name: from_json(leaf) for name, leaf in header["leaves"]}
        return cls(leaves=leaves, dtype=np.dtype(header["dtype"]), **kept)


def checked_settings(
    leaves: Leaves, run_id: str, dtype: DTypeLike, source: SourceName, lookahead: int | None, regenerate: bool
) -> Settings:
    """Settings from what a caller gave."""
    _check.text("NoiseStream", "run_id", run_id, "two runs need different ones")
    if lookahead is not None:
        lookahead = _check.positive_integer("NoiseStream", "lookahead", lookahead, "1 makes each step when asked for")
    if not isinstance(regenerate, bool):
        raise _check.invalid("NoiseStream", "regenerate", "True or False", regenerate, "False keeps old z in memory")
    return Settings(named(leaves), run_id, checked_dtype(dtype), source, lookahead, regenerate)


def checked_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """float32 or float64, in the byte order of the machine."""
    hint = "float32 noise serves gradients of lower precision too"
    try:
        made = np.dtype(dtype)
    except TypeError:
        raise _check.invalid("NoiseStream", "dtype", "float32 or float64", dtype, hint) from None
    if made not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise _check.invalid("NoiseStream", "dtype", "float32 or float64", made.name, hint)
    return made
