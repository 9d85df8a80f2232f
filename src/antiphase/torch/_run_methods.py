"""Methods that PrivacyEngine and NoiseAdder share: publish, report, get_epsilon and save."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from antiphase._run import PrivacyReport, Run, epsilon_so_far, refuse_pickle
from antiphase.torch._distributed import TorchDistributed


class RunMethods(ABC):
    """Base class with the methods that are forwarded to an open run."""

    __reduce_ex__ = refuse_pickle

    @property
    @abstractmethod
    def _open_run(self) -> Run:
        """The open run that the methods are forwarded to."""

    @property
    @abstractmethod
    def _transport(self) -> TorchDistributed:
        """Communication between the ranks of the run."""

    @abstractmethod
    def close(self) -> None:
        """Write everything to disk and release the lock on the directory."""

    @property
    def run_id(self) -> str:
        """Id of the run in the directory."""
        return self._open_run.run_id

    def publish(self, label: str) -> None:
        """Record in the ledger that results are published. Call it on every rank, before you release anything.

        With several processes and Opacus's DifferentiallyPrivateDistributedDataParallel, call it between two passes
        through the loader, since ranks may be at different steps within a pass.

        Args:
            label: a few words that name the published results.
        """
        self._transport.check_operation(f"publish {label!r}")
        self._open_run.publish(label)

    def report(self) -> PrivacyReport:
        """Return the guarantee of the steps that ran, together with the planned guarantee. Call it on rank 0 only."""
        return self._open_run.report()

    def get_epsilon(self, delta: float) -> float:
        """Return an upper bound on the epsilon of the steps taken so far; 0 before the first step.

        The bound is proved, rounded up, and covers every step in the ledger. Like the guarantee of `report`, it is for
        the plan's participation, adjacency and unit of privacy. Unlike with `report`, you can choose delta, and you can
        call this method on every rank.

        The bound relies on the same three assumptions as the report:

        - If you went back to an older checkpoint, or discarded a noisy gradient, neither this decision nor the new
          outputs depended on the old outputs.
        - Noise from `source="device"` is normally distributed.
        - If you stop training here, you did not decide to stop by looking at the outputs. If you did, use the epsilon
          of the plan.

        Args:
            delta: any number between 0 and 1, exclusive.
        """
        return epsilon_so_far(self._open_run, delta)

    def save(self) -> None:
        """Store the noise state on disk, so that a resumed run need not generate the noise from step 0 again."""
        self._open_run.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
