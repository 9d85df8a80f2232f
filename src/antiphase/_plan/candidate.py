"""Candidates of a plan: one record for every mechanism that the planner tried."""

from __future__ import annotations

import json
import re
from typing import Any, final

import numpy as np

from antiphase import _check
from antiphase._check import Array
from antiphase._participation import Participation
from antiphase._record import optional, record, to_json

CURVE_POINTS = 33
SIZE_UNITS = {"toeplitz": "bands", "banded": "bands", "banded-inverse": "bands", "blt": "buffers", "stamped": "repeats"}
TITLES = {"identity": "identity (DP-SGD)", "banded-inverse": "banded inverse"}
UNKNOWN_FAMILY = "unknown"

# Version 0.1.0 stored a display name and no family. "banded inverse" must come before its prefix "banded".
_STORED_PREFIXES = ("identity", "tree", "fourier", "toeplitz", "banded inverse", "banded", "blt", "dense")


@final
@record
class Candidate:
    """A mechanism that the planner tried: one row of the plan's table.

    Args:
        family: family of the strategy, such as "banded"; "unknown" if an older plan file does not state it.
        error: expected error under the problem's objective, for clipping norm 1. It is noise_std x error of the
            strategy.
        noise_std: standard deviation of the noise z in C x + z, for the strategy matrix C and the gradients x.
        noise_multiplier: effective noise multiplier, noise_std / sensitivity (see
            `Mechanism.effective_noise_multiplier`).
        epsilon: epsilon at the budget's delta.
        kind: kind of the bound on epsilon: "exact", "upper" or "confident".
        memory_copies: number of model-sized buffers that the noise needs.
        seconds: time in seconds to optimize and calibrate the candidate.
        participation: participation that the noise was calibrated for.
        per_step: standard deviation of the noise in the model after each step that `curve_steps` returns, for clipping
            norm 1; empty if not computed.
        size: number of bands, buffers or repeats; see `size_unit`. None for families without a size.
        variant: short text that tells apart candidates of the same family and size.
        rms_error: root mean square of the noise in the model over all steps, computed as if gradients did not depend on
            the parameters; None if an older plan file does not state it.
        name: display name. Omit this argument: the name is derived from family, size and variant.

    >>> from antiphase import Poisson
    >>> Candidate("banded", 1.0, 1.0, 1.0, 1.0, "exact", 15, 0.1, Poisson(0.1), size=16).name
    'banded (16 bands)'
    """

    family: str
    error: float
    noise_std: float
    noise_multiplier: float
    epsilon: float
    kind: str
    memory_copies: int
    seconds: float
    participation: Participation
    per_step: tuple[float, ...] = ()
    size: int | None = optional(None)
    variant: str = optional("")
    rms_error: float | None = optional(None)
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "per_step", tuple(self.per_step))
        derived = display_name(self.family, self.size, self.variant)
        if not self.name:
            object.__setattr__(self, "name", derived)
        elif self.name != derived and _identity_of_stored(self.name) != (self.family, self.size, self.variant):
            raise _check.invalid("Candidate", "name", f"{derived!r}", self.name, "omit the name")

    @property
    def size_unit(self) -> str:
        """The unit of `size`: "bands", "buffers" or "repeats"; empty for families without a size."""
        return SIZE_UNITS.get(self.family, "")

    @property
    def batches(self) -> str:
        """Name of the participation's class, such as "CyclicPoisson"."""
        return type(self.participation).__name__


def display_name(family: str, size: int | None = None, variant: str = "") -> str:
    """Return the name under which a candidate is shown.

    >>> display_name("banded", 16), display_name("blt", 1), display_name("toeplitz", 8, "unit columns")
    ('banded (16 bands)', 'blt (1 buffer)', 'toeplitz (8 bands), unit columns')
    >>> display_name("stamped", 4, "tree, online"), display_name("tree", variant="full"), display_name("dense")
    ('tree, online, x 4', 'tree, full', 'dense')
    """
    if family == "stamped":
        return f"{variant}, x {size}"
    title = TITLES.get(family, family)
    if size is not None:
        unit = SIZE_UNITS.get(family, "")
        title += f" ({size} {unit if size != 1 else unit.removesuffix('s')})"
    return f"{title}, {variant}" if variant else title


def curve_steps(steps: int) -> Array:
    """Return the steps at which a candidate records its error: at most 33 evenly spaced steps, from first to last.

    >>> curve_steps(5).tolist(), len(curve_steps(1000))
    ([1, 2, 3, 4, 5], 33)
    """
    return np.unique(np.linspace(1, steps, min(steps, CURVE_POINTS)).round().astype(np.int64))


def digestible(candidate: Candidate) -> dict[str, Any]:
    """Return the fields of a candidate that the digest in a run's ledger covers.

    The fields have the form of version 0.1.0, so that digests in older ledgers still match. The name determines family,
    size and variant, so the digest covers these as well.
    """
    data = to_json(candidate) | {"participation": repr(candidate.participation)}
    return {name: value for name, value in data.items() if name not in ("family", "size", "variant")}


def upgraded(data: Any) -> Any:
    """Convert the JSON of a candidate to the current form.

    Version 0.1.0 stored no family, and stored participations as text.
    """
    if not isinstance(data, dict) or "family" in data:
        return data
    name, text = data.get("name"), data.get("participation")
    if not isinstance(name, str) or not isinstance(text, str):
        return data  # `from_json` raises an error that explains what is wrong
    family, size, variant = _identity_of_stored(name)
    typed = {"family": family, "size": size, "variant": variant, "participation": _participation_of_stored(text)}
    return {**data, **typed}


def _identity_of_stored(name: str) -> tuple[str, int | None, str]:
    """Return family, size and variant of a display name written by version 0.1.0. The variant is always empty.

    >>> _identity_of_stored("banded inverse (4 bands)"), _identity_of_stored("tree, online, x 4")
    (('banded-inverse', 4, ''), ('stamped', 4, ''))
    """
    repeated = re.search(r", x (\d{1,9})$", name)
    if repeated:
        return "stamped", int(repeated[1]), ""
    family = next((p for p in _STORED_PREFIXES if name.startswith(p)), UNKNOWN_FAMILY).replace(" ", "-")
    size = re.search(r"\((\d{1,9}) (?:band|buffer)", name)
    return family, int(size[1]) if size else None, ""


def _participation_of_stored(text: str) -> Any:
    """Convert the `repr` of a participation to its JSON. Any other text is returned unchanged."""
    call = re.fullmatch(r"(\w+)\((.*)\)", text)
    if call is None:
        return text
    pairs = (argument.partition("=") for argument in call[2].split(", ") if argument)
    constants = {"None": None, "True": True, "False": False}
    try:
        values = {name: constants[value] if value in constants else json.loads(value) for name, _, value in pairs}
    except ValueError:
        return text
    return {"type": call[1], **values}
