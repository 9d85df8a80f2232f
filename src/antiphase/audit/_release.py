"""The values that an audited program released, and what the auditor knows about its canaries (artificial examples)."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array, invalid
from antiphase._errors import Corrupted

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Release:
    """The noisy sums of a run along the canaries' directions, in units of the clipping norm.

    Each canary has its own direction, orthogonal to all others. In each step in which it takes part, a present canary
    contributes the unit vector of its direction. An absent canary contributes zero or, under replace adjacency, the
    negative unit vector.

    Args:
        projections: released sums along the canaries' directions, shape (steps, canaries).
        present: for each canary, True if its coin flip put it into the data.
        taking_part: entry [t, i] is True if the program used canary i in step t, shape (steps, canaries). This includes
            absent canaries, whose contribution is zero or the negative unit vector.
        quiet: released sums along directions in which no example contributes, shape (steps, directions). These sums
            contain only noise.
        signs: sign of the canaries' contribution in each step, shape (steps,). None for +1 everywhere.
        replayed: largest difference between two releases of the same step, in units of the claimed noise_std; 0 if no
            step was replayed.
        source: description of what produced the release.
        seconds: how long it took to produce the release.
        single_run: True if all canaries were in the same run. The test of fixed batch sizes needs such a release.
    """

    projections: Array
    present: Flags
    taking_part: Flags
    quiet: Array
    signs: Array | None = None
    replayed: float = 0.0
    source: str = "released sums"
    seconds: float = 0.0
    single_run: bool = False

    def __post_init__(self) -> None:
        projections = _matrix("projections", self.projections)
        quiet = _matrix("quiet", self.quiet)
        steps, canaries = projections.shape
        present, part = np.asarray(self.present, np.bool_), np.asarray(self.taking_part, np.bool_)
        signs = np.ones(steps) if self.signs is None else np.asarray(self.signs)
        if present.shape != (canaries,):
            raise invalid(
                "Release", "present", f"{canaries} flags", f"shape {present.shape}", "pass one flag for each canary"
            )
        if part.shape != (steps, canaries):
            hint = "pass one row for each step and one column for each canary"
            raise invalid("Release", "taking_part", f"of shape {(steps, canaries)}", f"shape {part.shape}", hint)
        if quiet.shape[0] != steps:
            raise invalid("Release", "quiet", f"{steps} rows", f"shape {quiet.shape}", "pass one row for each step")
        if signs.shape != (steps,) or not np.isin(signs, (-1.0, 1.0)).all():
            hint = "pass one sign for each step, or None"
            raise invalid("Release", "signs", f"{steps} numbers that are 1 or -1", f"shape {signs.shape}", hint)
        if not math.isfinite(self.replayed):
            hint = "check the releases of the replayed steps"
            raise invalid("Release", "replayed", "a finite number", self.replayed, hint)
        object.__setattr__(self, "projections", projections)
        object.__setattr__(self, "quiet", quiet)
        object.__setattr__(self, "present", present)
        object.__setattr__(self, "taking_part", part)

    def save(self, path: str | Path) -> None:
        """Write the release to a file for `antiphase audit --released`. Only the coins, `present`, are secret."""
        signs = np.ones(self.steps) if self.signs is None else self.signs
        with Path(path).open("wb") as file:
            np.savez_compressed(
                file,
                projections=self.projections,
                present=self.present,
                taking_part=self.taking_part,
                quiet=self.quiet,
                signs=signs,
                replayed=np.array(self.replayed),
                source=np.array(self.source),
                seconds=np.array(self.seconds),
                single_run=np.array(self.single_run),
            )

    @classmethod
    def load(cls, path: str | Path) -> Release:
        """Read a release that `save` wrote."""
        content = io.BytesIO(Path(path).read_bytes())
        try:
            with np.load(content, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            return cls(
                arrays["projections"],
                arrays["present"],
                arrays["taking_part"],
                arrays["quiet"],
                arrays["signs"],
                float(arrays["replayed"]),
                str(arrays["source"]),
                float(arrays["seconds"]),
                bool(arrays.get("single_run", False)),
            )
        except Exception as error:  # for damaged files, NumPy and zipfile raise errors of many types
            raise Corrupted(
                f"{path} is not a saved release: {error}.", hint="pass an unchanged file that Release.save wrote"
            ) from error

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.projections)

    @property
    def canaries(self) -> int:
        """Number of canaries."""
        return self.projections.shape[1]

    @property
    def used(self) -> Array:
        """Sign of each canary's contribution if it takes part, otherwise 0, shape (steps, canaries)."""
        signs = np.ones(self.steps) if self.signs is None else self.signs
        return self.taking_part * signs[:, None]


def joined(releases: list[Release]) -> Release:
    """Combine releases from independent runs of the same program into one release with all canaries."""
    first = releases[0]
    return Release(
        projections=np.hstack([r.projections for r in releases]),
        present=np.concatenate([r.present for r in releases]),
        taking_part=np.hstack([r.taking_part for r in releases]),
        quiet=np.hstack([r.quiet for r in releases]),
        signs=first.signs,
        replayed=max(r.replayed for r in releases),
        source=f"{first.source}, {len(releases)} runs" if len(releases) > 1 else first.source,
        seconds=sum(r.seconds for r in releases),
        single_run=len(releases) == 1 and first.single_run,
    )


def _matrix(name: str, value: Any) -> Array:
    found = np.asarray(value, dtype=np.float64)
    if found.ndim != 2:
        raise invalid("Release", name, "a matrix", f"shape {found.shape}", "pass one row for each step")
    if not np.isfinite(found).all():
        raise invalid("Release", name, "finite in every entry", "NaN or infinity", "check what was released")
    return found
