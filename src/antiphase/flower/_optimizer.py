"""Server optimizers. They only post-process the noisy mean update, so they do not affect the guarantee."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np

from antiphase import _check
from antiphase._errors import InvalidArgument
from antiphase._workload import Momentum, PrefixSum, Workload
from antiphase.flower._wire import Arrays


class ServerOptimizer(ABC):
    """Base class of server optimizers, which compute the next model from a noisy mean update.

    The state of an optimizer is a dictionary of arrays, which is stored with the model. `step` must return the same
    result for the same arguments.

    **Guarantee**: an optimizer does not weaken the run's guarantee if `step` uses only its arguments.
    """

    @abstractmethod
    def init(self, model: Arrays) -> Arrays:
        """Return the state before the first release."""

    def check_state(self, state: Arrays) -> None:
        """Raise an error if training cannot continue from a state. By default, do nothing.

        `DPFTRL` calls this method when it starts or resumes a run.

        Args:
            state: state after the last release, or the result of `init` for a new run.
        """
        return

    @abstractmethod
    def step(self, release: int, model: Arrays, update: Arrays, state: Arrays) -> tuple[Arrays, Arrays]:
        """Return the model and the state after a release.

        Args:
            release: index of the release, from 0.
            model: model before the release; do not modify it.
            update: noisy mean update, in float64: the sum of the clipped updates plus the noise, divided by the number
                of clients that a release is planned for (`goal` or `simulated_goal` of `DPFTRL`). Add it to the model
                for a descent step.
            state: state before the release; do not modify it.
        """


@final
@dataclass(frozen=True)
class SGD(ServerOptimizer):
    """SGD with momentum and weight decay.

    In each release, m <- momentum * m + update, then model <- (1 - rate * weight_decay) * model + rate * m. Here m is
    the velocity, and rate is the learning rate.

    Args:
        learning_rates: one number, or one number per release, for example from `antiphase.schedules.linear`.
        momentum: momentum coefficient in [0, 1).
        weight_decay: weight decay coefficient, at least 0.

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
            _check.real("SGD", "learning_rates", float(rate), 0.0, 1e300, "pass one number, or one per release")
        _check.real("SGD", "momentum", self.momentum, 0.0, np.nextafter(1.0, 0.0), "use 0 for plain SGD; 0.9 is common")
        _check.real("SGD", "weight_decay", self.weight_decay, 0.0, 1e300, "use 0 for no weight decay")

    def init(self, model: Arrays) -> Arrays:
        """Return a zero velocity for each array, or an empty state if there is no momentum."""
        return {name: np.zeros_like(value) for name, value in model.items()} if self.momentum else {}

    def check_state(self, state: Arrays) -> None:
        """Raise an error if this optimizer has momentum, but the stored state has no velocity."""
        if self.momentum and not state:
            raise InvalidArgument(
                f"The server optimizer has momentum {self.momentum:g}, but the run was started without momentum and "
                "has no velocity.",
                hint="use momentum=0, or start a new run in another directory",
            )

    def step(self, release: int, model: Arrays, update: Arrays, state: Arrays) -> tuple[Arrays, Arrays]:
        """Return the model and the velocity after one step."""
        rate = self._rate(release)
        velocity = {
            name: (self.momentum * state[name] + value).astype(model[name].dtype) if state else value
            for name, value in update.items()
        }
        shrink = 1.0 - rate * self.weight_decay
        moved = {name: (shrink * value + rate * velocity[name]).astype(value.dtype) for name, value in model.items()}
        return moved, velocity if state else {}

    def _rate(self, release: int) -> float:
        if isinstance(self.learning_rates, (int, float)):
            return float(self.learning_rates)
        if release >= len(self.learning_rates):
            count = len(self.learning_rates)
            raise InvalidArgument(
                f"SGD has {count} learning rate{'s' if count > 1 else ''}, but the plan has more releases: there is "
                f"none for release {release}, counted from 0.",
                hint="pass learning_rates=... with one number for every release of the plan, or a single number",
            )
        return self.learning_rates[release]


def optimizer_for(workload: Workload) -> SGD:
    """Return the optimizer that corresponds to a plan's workload."""
    if isinstance(workload, PrefixSum):
        return SGD()
    if isinstance(workload, Momentum):
        rates = 1.0 if workload.learning_rates is None else tuple(map(float, workload.learning_rates))
        return SGD(rates, workload.beta, workload.weight_decay)
    raise _check.invalid(
        "DPFTRL",
        "optimizer",
        f"given for a plan with workload {type(workload).__name__}",
        None,
        "pass a ServerOptimizer",
    )
