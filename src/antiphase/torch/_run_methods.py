"""Methods that PrivacyEngine and NoiseAdder share: those of their run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from antiphase._run import PrivacyReport, Run, epsilon_so_far, refuse_pickle


class RunMethods(ABC):
    """Publishing, reporting and saving, for classes that hold a run."""

    __reduce_ex__ = refuse_pickle

    @property
    @abstractmethod
    def _open_run(self) -> Run:
        """The run."""

    @abstractmethod
    def close(self) -> None:
        """Write everything to disk and let other processes open the directory."""

    @property
    def run_id(self) -> str:
        """Id of the run in the directory."""
        return self._open_run.run_id

    def publish(self, label: str) -> None:
        """Record that results are published. Call it on every rank, before you release anything."""
        self._open_run.publish(label)

    def report(self) -> PrivacyReport:
        """The guarantee of the steps that ran, next to what was planned. On rank 0 only."""
        return self._open_run.report()

    def get_epsilon(self, delta: float) -> float:
        """An upper bound on the epsilon of the steps taken so far; 0 before the first step.

        It covers every step in the ledger, under the plan's participation, adjacency and unit of privacy: what `report`
        states, at any delta and on every rank. It is a proved bound, rounded up. As in the report, three things are
        assumed: steps that were replaced did not influence their replacements; noise from `source="device"` is normal;
        and if you stop training here, you did not choose this step by looking at the outputs. If you did, the epsilon
        of the plan applies.

        Args:
            delta: between 0 and 1, exclusive; any delta, not only that of the plan.
        """
        return epsilon_so_far(self._open_run, delta)

    def save(self) -> None:
        """Store the noise state, so that resuming from here does not generate the noise from the start."""
        self._open_run.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
