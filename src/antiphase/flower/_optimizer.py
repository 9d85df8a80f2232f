"""What the server does with the noised mean update: post-processing, so any optimizer keeps the guarantee."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np

from antiphase import _check
from antiphase._workload import Momentum, PrefixSum, Workload
from antiphase.flower._wire import Arrays


class ServerOptimizer(ABC):
    """Turns a noised mean update into the next model; its state is arrays, stored with the model.

    **Guarantee**: none is needed and none is lost, as long as it sees nothing but its arguments. It must give the same
    result for the same arguments.
    """

    @abstractmethod
    def init(self, model: Arrays) -> Arrays:
        """The state before the first release."""

    @abstractmethod
    def step(self, release: int, model: Arrays, update: Arrays, state: Arrays) -> tuple[Arrays, Arrays]:
        """The model and state after a release.

        Args:
            release: its index, from 0.
            model: before the release; not to be changed.
            update: noised sum of the clipped updates over the report goal, float64; points downhill.
            state: before the release; not to be changed.
        """


@final
@dataclass(frozen=True)
class SGD(ServerOptimizer):
    """m = momentum m + update; model = (1 - rate x weight_decay) model + rate m.

    Args:
        learning_rates: one number, or one for each release: `antiphase.schedules.linear` warms up and cools down.
        momentum: in [0, 1).
        weight_decay: 0 or more.

    >>> import numpy as np
    >>> sgd = SGD(learning_rates=(1.0, 0.5), momentum=0.5)
    >>> model, state = {"w": np.zeros(1)}, sgd.init({"w": np.zeros(1)})
    >>> for release in range(2):
    ...     model, state = sgd.step(release, model, {"w": np.ones(1)}, state)
    >>> model["w"]
    array([1.75])

    Reference: McMahan, Xu and Zhang 2024, Alg. 1.
    """

    learning_rates: float | tuple[float, ...] = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.learning_rates, (int, float)):
            object.__setattr__(self, "learning_rates", tuple(float(rate) for rate in self.learning_rates))
        for rate in np.atleast_1d(self.learning_rates):
            _check.real("SGD", "learning_rates", float(rate), 0.0, 1e300, "one number, or one for each release")
        _check.real("SGD", "momentum", self.momentum, 0.0, np.nextafter(1.0, 0.0), "0 is plain SGD, 0.9 is usual")
        _check.real("SGD", "weight_decay", self.weight_decay, 0.0, 1e300, "0 is none")

    def init(self, model: Arrays) -> Arrays:
        """A zero velocity for each array, where there is momentum."""
        return {name: np.zeros_like(value) for name, value in model.items()} if self.momentum else {}

    def step(self, release: int, model: Arrays, update: Arrays, state: Arrays) -> tuple[Arrays, Arrays]:
        """One step."""
        rate = self._rate(release)
        speed = {
            name: (self.momentum * state[name] + value).astype(model[name].dtype) if state else value
            for name, value in update.items()
        }
        shrink = 1.0 - rate * self.weight_decay
        moved = {name: (shrink * value + rate * speed[name]).astype(value.dtype) for name, value in model.items()}
        return moved, speed if state else {}

    def _rate(self, release: int) -> float:
        if isinstance(self.learning_rates, (int, float)):
            return float(self.learning_rates)
        if release >= len(self.learning_rates):
            raise _check.invalid(
                "SGD", "learning_rates", "one for each release", f"{len(self.learning_rates)} of them", "give more"
            )
        return self.learning_rates[release]


def optimizer_for(workload: Workload) -> SGD:
    """The optimizer that a plan's workload describes."""
    if isinstance(workload, PrefixSum):
        return SGD()
    if isinstance(workload, Momentum):
        rates = 1.0 if workload.learning_rates is None else tuple(map(float, workload.learning_rates))
        return SGD(rates, workload.beta, workload.weight_decay)
    raise _check.invalid(
        "DPFTRL", "optimizer", "given for this workload", type(workload).__name__, "pass a ServerOptimizer"
    )
