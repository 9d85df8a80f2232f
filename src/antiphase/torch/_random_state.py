"""Derives a step's random numbers, for dropout, random collators and augmentation, from the run's secret.

Row i of a batch gets the i-th random numbers. If the seed were known, leaving out one example would give all later
examples different numbers, and change the sum of the clipped gradients by far more than the clipping norm. With a
secret seed, the numbers of all rows are equally random, so it does not matter which row an example has.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np
import torch

from antiphase._errors import Refused
from antiphase._run import Run, refuse_pickle, secret_of
from antiphase._traceback import without_locals

KEY = 32  # length of a key, in bytes
# The state of PyTorch's CPU generator, a Mersenne Twister, is 624 words of 32 bits. `manual_seed` can set only 2^32 of
# all possible states, so `seed_generators` sets the words directly.
WORDS = slice(3, 627)  # place of these words in the result of torch.get_rng_state(), viewed as 64-bit integers


class GeneratorStates(NamedTuple):
    """States of the global random generators: of Python, of NumPy, and of PyTorch on the CPU and on other devices."""

    python: Any
    numpy: Any
    torch: torch.Tensor
    devices: dict[torch.device, torch.Tensor]


@final
class StepGenerators:
    """Seeds the global random generators from the run's secret when a step starts, and restores them when it ends.

    A resumed run therefore has the same dropout as an uninterrupted one. Between two steps, the states of the
    generators do not reveal how many examples a step had.

    Steps of several runs in one process may overlap. The generators are then restored only when the last of these
    steps ends.

    Args:
        run: run with the secret.
        rank: rank of this process; ranks draw different numbers.
        parameters: trained parameters, whose devices may have generators of their own.
    """

    def __init__(self, run: Run, rank: int, parameters: Iterable[torch.Tensor]) -> None:
        self._run, self._rank = run, rank
        self._devices = sorted({p.device for p in parameters if p.device.type != "cpu"}, key=str)
        self._outside: GeneratorStates | None = None
        self._starts = self._seed = self._batches = 0
        self._place: tuple[int, int | None] = (0, None)

    __reduce_ex__ = refuse_pickle

    def start(self, step: int, example: int | None = None) -> int:
        """Seed the generators for a step whose batch is about to be loaded. Return how often `start` was called so far.

        Args:
            step: index of the step.
            example: None if the whole batch is loaded at once. With lattice noise, examples are loaded one by one,
                and this is the index of the example in the data set. (A row number would change with the batch.)
        """
        if self._outside is None:
            self._outside = _states(self._devices)
            _ACTIVE.append(self)
        self.seed(step, example)
        self._starts += 1
        return self._starts

    def seed(self, step: int, example: int | None = None) -> None:
        """Seed the generators for a step, or for one of its examples. The arguments are the same as for `start`."""
        self._place, self._batches = (step, example), 0
        self._seed_from("step" if example is None else "example")

    def before_collation(self) -> None:
        """Seed the generators again, so that seeds set by the data set do not reach the collator and the model.

        A data set may seed the generators for each example, such as to transform an image and its mask in the same way.
        """
        if self._outside is not None:
            self._batches += 1
            self._seed_from(f"batch {self._batches}")

    def _seed_from(self, purpose: str) -> None:
        seed_generators(self._key(purpose, *self._place))
        self._seed = torch.initial_seed()

    def check(self) -> None:
        """Raise `Refused` if other code has seeded PyTorch's generator since the step started."""
        if self._outside is not None and torch.initial_seed() not in {other._seed for other in _ACTIVE}:
            raise Refused(
                "PyTorch's random generator was seeded after the batch was loaded. If the seed is known, leaving out "
                "one example changes the dropout of later examples, which clipping does not cover.",
                hint="call torch.manual_seed before the loop; in every step, the generators are seeded from the run's "
                "secret",
            )

    def end(self, started: int | None = None) -> None:
        """Restore the generators to their states before the step.

        Args:
            started: number that `start` returned. Nothing happens if `start` was called again since then. With None,
                the generators are restored in any case.
        """
        outside = self._outside
        if started not in (None, self._starts) or outside is None:
            return
        self._outside = None
        place = _ACTIVE.index(self)
        del _ACTIVE[place]
        if place == len(_ACTIVE):
            _restore(outside)
        else:  # a step of another run, started later, is under way; the generators are restored when that step ends
            _ACTIVE[place]._outside = outside

    def worker_start(self, step: int, then: Callable[[int], None] | None) -> Callable[[int], None]:
        """Return a function that seeds the generators of a worker process of the data loader.

        Args:
            step: first step that the workers load.
            then: function of the user to call in each worker, or None.
        """
        return partial(_start_worker, self._key("workers", step), then)

    @without_locals
    def _key(self, purpose: str, step: int, example: int | None = None) -> bytes:
        whose = self._rank if example is None else example
        labels = ("antiphase torch generators", self._run.run_id, purpose, step, whose)
        return secret_of(self._run).derive(*labels, length=KEY)


_ACTIVE: list[StepGenerators] = []  # objects of this process whose step is under way, in the order of their starts


@final
class SeededCollate:
    """Collates a batch after the generators were seeded from the run's secret.

    Args:
        collate: collate function of the user.
        generators: object that seeds the global random generators.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], generators: StepGenerators) -> None:
        self.collate, self._generators = collate, generators

    __reduce_ex__ = refuse_pickle

    def __call__(self, examples: list[Any]) -> Any:
        """Return the batch of a list of examples."""
        self._generators.before_collation()
        return self.collate(examples)


def seed_generators(key: bytes) -> None:
    """Seed the global generators of Python, NumPy and PyTorch from 32 bytes."""
    data = hashlib.shake_256(key).digest(2 * KEY + 8 + 4 * 624)
    random.seed(data[:KEY])
    np.random.seed(np.frombuffer(data[KEY : 2 * KEY], np.uint32))  # noqa: NPY002
    _seed_torch(int.from_bytes(data[2 * KEY : 2 * KEY + 8], "little"))
    state = torch.get_rng_state()
    words = np.frombuffer(data[2 * KEY + 8 :], np.uint32).astype(np.int64)
    state.view(torch.int64)[WORDS] = torch.from_numpy(words)
    torch.set_rng_state(state)


def _seed_torch(seed: int) -> None:
    """Seed PyTorch's generators on all devices.

    Without an accelerator, only the CPU's generator is seeded. torch.manual_seed would also store the seed for devices
    that are not in use, together with a formatted stack trace, and this takes milliseconds.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def _start_worker(key: bytes, then: Callable[[int], None] | None, worker: int) -> None:
    own = hashlib.sha256(key + worker.to_bytes(8, "little")).digest()
    seed_generators(own)
    if then is not None:
        then(worker)  # it may set seeds that others know, such as the worker's number, so seed again afterwards
        seed_generators(hashlib.sha256(own).digest())


def _states(devices: Iterable[torch.device]) -> GeneratorStates:
    own = {device: _module(device).get_rng_state(device) for device in devices}
    return GeneratorStates(random.getstate(), np.random.get_state(), torch.get_rng_state(), own)  # noqa: NPY002


def _restore(states: GeneratorStates) -> None:
    random.setstate(states.python)
    np.random.set_state(states.numpy)  # noqa: NPY002
    torch.set_rng_state(states.torch)
    for device, state in states.devices.items():
        _module(device).set_rng_state(state, device)


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
