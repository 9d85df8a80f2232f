"""Tracks the current training step on one rank: its examples, and whether all of them were processed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, final

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from antiphase._errors import Refused
from antiphase._samplers import shard
from antiphase._traceback import without_locals
from antiphase.torch._names import layer_names, parameter_names, unwrapped_name
from antiphase.torch._noise_adder import NoiseAdder

CACHED_BATCHES = 64  # enough for the batches that the workers of a data loader prefetch


class Version(NamedTuple):
    """State of a tensor that a model stores.

    Args:
        tensor: the tensor itself.
        changes: number of times that the tensor was changed in place. PyTorch does not count changes of `tensor.data`.
        values: copy of a buffer's values, or fingerprint of a trained parameter's values. None for frozen parameters,
            which may be too large to read in every step.
    """

    tensor: Any
    changes: int
    values: torch.Tensor | None

    def is_same(self, other: Version) -> bool:
        """Return whether the tensor was neither changed nor replaced between the two states."""
        if self.tensor is not other.tensor or self.changes != other.changes:
            return False
        return self.values is None or other.values is None or _equal(self.values, other.values)


Versions = dict[str, Version]


@final
class StoredTensors:
    """Detects changes of the tensors that a model stores: its parameters, including frozen ones, and its buffers.

    Parameters sharded by FSDP are left out, since FSDP changes them in every pass. Codebooks, running means and layers
    that are initialized from the first batch often change `tensor.data`, which PyTorch does not count as a change. So
    the values of buffers and of trained parameters are also compared.

    Args:
        module: model.
        every_buffer: whether to include two more kinds of buffers: those that checkpoints do not contain, which are
            often caches, and buffers of integers, in which some layers count their calls.
    """

    def __init__(self, module: nn.Module, *, every_buffer: bool = False) -> None:
        names, self._layers = parameter_names(module), layer_names(module)
        self._module, self._every_buffer = module, every_buffer
        self._parameters = [(names[id(p)], p) for p in module.parameters() if not isinstance(p, DTensor)]
        self.trained = {name for name, p in self._parameters if p.requires_grad}

    def versions(self) -> Versions:
        """Return the current state of each tensor."""
        found = {
            name: Version(p, _count(p), _fingerprint(p) if name in self.trained else None)
            for name, p in self._parameters
        }
        return found | {name: Version(b, _count(b), b.detach().clone()) for name, b in self._buffers()}

    def _buffers(self) -> Iterator[tuple[str, Any]]:
        for layer in self._module.modules():
            for key, buffer in layer._buffers.items():
                is_stored = key not in layer._non_persistent_buffers_set
                if buffer is not None and (self._every_buffer or (is_stored and buffer.is_floating_point())):
                    layer_name = self._layers.get(id(layer), type(layer).__name__)
                    yield unwrapped_name(f"{layer_name}.{key}".lstrip(".")), buffer

    def changed_since(self, before: Versions) -> str | None:
        """Return the name of a tensor that was changed or replaced since `versions` returned `before`, or None."""
        now = self.versions()
        for name in {**before, **now}:
            if name not in before or name not in now or not now[name].is_same(before[name]):
                return name
        return None


@final
class StepTracker:
    """Provides the batch of each step on this rank, and checks that each gradient sum is over the step's own batch.

    The examples of a batch are split over the ranks: rank r of R processes examples r, r + R, r + 2R and so on.

    Args:
        noise: adds the noise and commits the steps.
        module: model. While gradients are computed, its parameters may not change, nor may the floating-point buffers
            that its checkpoints contain. With lattice noise, no buffer may change at all, because examples are
            processed one after another, and no example may depend on an earlier one.
        even: whether all ranks must process equally many examples, as FSDP requires. If so, a rank that has one example
            fewer than others also processes another example of the batch, with weight 0.
    """

    def __init__(self, noise: NoiseAdder, module: nn.Module, *, even: bool) -> None:
        self.noise = noise
        noise._reserve_for_engine()
        self._even = even
        self.generators = noise._generators_for_engine()
        self._gradients = 0
        self._allowed: int | None = None  # number of examples yielded in this step so far, if yielded one at a time
        self._yielded: int | None = None
        self._held = StoredTensors(module, every_buffer=noise.plan.mechanism.lattice is not None)
        self._versions: Versions | None = None  # versions of the model's tensors when the loader yielded the batch
        self._yields_empty = False
        # With several ranks, a pass through the loader ends at the same step on all ranks. Otherwise, a rank without
        # examples could start the next pass while, for example, another rank publishes results.
        self._pass_end = self.steps if noise.transport.size == 1 else 0
        self.examples = lru_cache(maxsize=CACHED_BATCHES)(self._examples)

    @property
    def step(self) -> int:
        """Index of the next step to take, from 0."""
        return self.noise.step

    @property
    def steps(self) -> int:
        """Number of steps in the plan."""
        return self.noise.plan.steps

    @property
    def is_empty(self) -> bool:
        """True if the optimizer takes the next step by itself, because this rank has no examples in that step.

        It is False after the last step. With several ranks, it is also False after the last step of a pass through the
        loader.
        """
        return not self._yields_empty and self.step < self._pass_end and not self.examples(self.step)[0]

    @property
    def is_empty_yielded(self) -> bool:
        """True if the batch of the next step has no examples, and the loader has yielded it."""
        return self._yields_empty and self._yielded == self.step and not self.examples(self.step)[0]

    def yields(self, step: int) -> bool:
        """Return whether the loader yields the batch of a step."""
        return self._yields_empty or bool(self.examples(step)[0])

    def yield_empty_batches(self) -> None:
        """Make the loader also yield batches without examples, so that every step is an iteration of the loop."""
        self._yields_empty = True

    def is_padded(self) -> bool:
        """Return whether the last example of the next step is a repeated example with weight 0."""
        return self.examples(self.step)[1]

    @without_locals
    def _examples(self, step: int) -> tuple[list[int], bool]:
        """Return this rank's examples in a step, and whether the last of them is a repeated example with weight 0."""
        indices, mask = self.noise._draw_for_engine(step)
        used, ranks = indices[mask], self.noise.transport
        mine = shard(used, mask[mask], ranks.rank, ranks.size).indices.tolist()
        if self._even and len(mine) < -(-len(used) // ranks.size):
            return [*mine, int(used[0])], True
        return mine, False

    def start_pass(self, end: int) -> None:
        """Record that a pass through the loader starts. On all ranks, the pass ends before step `end`."""
        if self.noise.transport.size > 1:
            self._pass_end = end

    @property
    def has_all_gradients(self) -> bool:
        """True if the sum has a gradient for every example of the step on this rank."""
        return self._gradients >= len(self.examples(self.step)[0])

    def start_batch(self, step: int, part: int | None = None) -> None:
        """Record that the loader yields the batch of `step`. Raise `Refused` if it is not the next step.

        Args:
            step: index of the step.
            part: position in the batch of the yielded example, if examples are yielded one at a time.
        """
        if step != self.step:
            raise Refused(
                f"The loader is about to yield the batch of step {step}, but the next step is {self.step}.",
                hint="use one iterator of the loader at a time, and a new iterator after load_state_dict",
            )
        self._allowed = None if part is None else part + 1
        if part:
            return
        self._yielded, self._versions = step, self._held.versions()
        self.noise._start_for_engine()

    def start_empty_batch(self) -> None:
        """Record that the next step's batch, which is empty, needs no gradients."""
        self._yielded, self._gradients, self._versions = self.step, 0, None

    def check_taken(self, step: int, part: int | None = None) -> None:
        """Raise `Refused` if `step` was not taken. The loader calls this before it yields the next batch.

        Args:
            step: index of the step.
            part: position in the batch of the example that was yielded, if examples are yielded one at a time.
        """
        if part is not None and self.step == step and self._gradients == part + 1 and not self.has_all_gradients:
            return
        if self.step <= step:
            raise Refused(
                f"The next batch was requested, but step {step} was not taken.",
                hint="call optimizer.step() once for each batch of the loader; "
                "to split a batch use BatchMemoryManager, without worker processes",
            )

    def count(self, gradients: int) -> None:
        """Add the number of clipped gradients of a physical batch (one backward pass) to the count of the step."""
        if self._allowed is not None and self._gradients + gradients > self._allowed:
            raise Refused(
                f"The gradient of an example was added twice in step {self.step}.",
                hint="call optimizer.step() once for each item of the loader",
            )
        self._gradients += gradients

    def reset_count(self) -> None:
        """Set the count of gradients to 0, because their sum was dropped."""
        self._gradients = 0

    def check_sum(self) -> None:
        """Raise `Refused` unless the sum has one clipped gradient for each example of the step's own batch."""
        wanted = len(self.examples(self.step)[0])
        if self._yielded != self.step:
            raise Refused(
                f"The batch of step {self.step} is not from the private data loader.",
                hint="train on the data loader that make_private returned: the guarantee relies on its batches",
            )
        self.generators.check()
        if self._versions is not None and (changed := self._held.changed_since(self._versions)):
            raise _changed(changed, self.step, is_trained=changed in self._held.trained)
        if self._gradients != wanted:
            words = "More" if self._gradients > wanted else "Fewer"
            raise Refused(  # without the numbers: the size of a batch may be secret
                f"{words} clipped gradients were summed than there are examples in the batch of step {self.step}.",
                hint="compute one gradient for every example of the batch, and call optimizer.step() once per batch",
            )

    def commit(self) -> None:
        """Record the step in the ledger and advance to the next step."""
        self.noise._commit_for_engine()
        self.generators.end()
        self._gradients = 0

    def reset(self) -> None:
        """Forget the yielded batch and the count of gradients, so that training can continue at another step."""
        self._yielded, self._gradients, self._versions = None, 0, None
        self._allowed = None
        self.examples.cache_clear()


def _fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor's values, with their bits read as integers, modulo 2^64.

    Almost every change of the values also changes this sum.
    """
    flat = tensor.detach().reshape(-1)
    if flat.element_size() == 4 and len(flat) % 2 == 0 == flat.storage_offset() % 2:
        return flat.view(torch.int64).sum()  # ten times as fast as summing integers of 32 bits
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
    return flat.view(kinds[flat.element_size()]).sum(dtype=torch.int64)


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether all values are equal; NaN equals NaN."""
    if first.shape != second.shape or first.dtype != second.dtype or first.device != second.device:
        return False
    return torch.equal(first, second) or bool(((first == second) | (first.isnan() & second.isnan())).all())


def _count(tensor: Any) -> int:
    """Return how often a tensor was changed in place. Return -1 for None, and for tensors that do not count changes."""
    return -1 if tensor is None or tensor.is_inference() else int(tensor._version)


def _changed(name: str, step: int, *, is_trained: bool) -> Refused:
    if is_trained:
        return Refused(
            f"The parameters were changed while the gradients of step {step} were computed, for example {name!r}. "
            "They may contain gradients without noise.",
            hint="change parameters only after step() and before the next batch; remove methods such as SAM that move "
            "the weights by gradients without noise",
        )
    return Refused(
        f"{name!r}, which is not trained, was changed while the gradients of step {step} were computed. If the change "
        "depends on the data, the model reveals the data without noise.",
        hint="remove layers that collect statistics of the data, such as running means, codebooks with moving averages "
        "and ranges for quantization; if a tensor does not depend on the data, change it after step() and before the "
        "next batch",
    )
