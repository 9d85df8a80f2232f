"""Lattice noise in PyTorch: turns each example's gradient into integers, and adds integer noise to their exact sum.

A contribution is the gradient of one example, clipped and truncated to integers, in units of the grid (a power of two
that the plan's lattice sets). A release is the sum of a step's contributions plus noise. The proof in
docs/lattice-noise.md needs two properties of a contribution. First, its norm is at most `lattice.norm`:
`Lattice.contribution` truncates the gradient and checks the norm, in integers. Second, the contribution depends only on
the example itself and on past releases. So each forward and backward pass has only one example, because in a larger
batch, the last bits of a gradient could depend on the other examples. Sums and releases are int64 tensors on the host,
and only releases become gradients of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from antiphase._errors import Refused
from antiphase._lattice import Lattice
from antiphase._plan import Plan
from antiphase.torch._clipping_checks import Clipping, PerExampleClipping
from antiphase.torch._criterion import clipping_factors
from antiphase.torch._ghost import ClippedSums
from antiphase.torch._precision import squared_norms

WITHOUT = "or make a plan without lattice=True"


@final
class LatticeClipping(Clipping):
    """Turns the gradient of one example into integers on the lattice of the plan.

    Args:
        module: model, wrapped by Opacus.
        parameters: all trained parameters.
        clip_norms: one clipping norm for the whole gradient, or one per parameter.
        lattice: lattice of the plan.
    """

    def __init__(
        self, module: Any, parameters: list[torch.Tensor], clip_norms: tuple[float, ...], lattice: Lattice
    ) -> None:
        super().__init__(module, parameters, clip_norms)
        self.lattice = self._grid = lattice
        self._gradients = PerExampleClipping(module, parameters, clip_norms)

    def take(self) -> ClippedSums:
        """Return the contribution of the example of this pass, as int64 tensors.

        Its norm is computed exactly and is at most `lattice.norm`. If any entry of the gradient is not finite, the
        contribution is zero.
        """
        rows = self._gradients.read()
        if len(rows[0]) != 1:
            raise Refused(
                "The plan has a lattice, so gradients are computed one example at a time. This pass had several "
                "examples, or none.",
                hint="train on the items of the loader that make_private returned, without changing them: each item is "
                "one example",
            )
        if len(self.clip_norms) > 1:
            rows = [_clipped(row, norm) for row, norm in zip(rows, self.clip_norms, strict=True)]
        made = self._grid.contribution(row.detach().cpu().numpy() for row in rows)
        self._gradients.mark_used()
        pairs = zip(made, self._parameters, strict=True)
        return ClippedSums([torch.from_numpy(array).view(p.shape) for array, p in pairs], 1)

    def zeros(self) -> list[torch.Tensor]:
        """Return the sums for a batch without examples: a tensor of zeros for each parameter."""
        return [torch.zeros(p.shape, dtype=torch.int64) for p in self._parameters]

    def add(self, total: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        """Return the sum of integers, modulo 2^64. Sums of fewer than 2^14 examples always fit; see `Lattice`."""
        assert total.dtype == more.dtype == torch.int64
        return total.add_(more)


def _clipped(row: torch.Tensor, norm: float) -> torch.Tensor:
    """Return the gradient of a parameter, clipped to a norm of about `norm`.

    `Lattice.contribution` later checks the norm of the whole gradient, in integers.
    """
    wide = row.detach().cpu().double()
    return wide * clipping_factors(squared_norms(wide).sqrt(), norm)


def set_released(parameters: Sequence[Any], released: Sequence[torch.Tensor], lattice: Lattice) -> None:
    """Convert released integers to real numbers, in the dtype of each parameter, and store them in `p.grad`.

    This is post-processing, so it costs no privacy.

    Args:
        parameters: all trained parameters.
        released: sums plus noise, in units of the grid, as one flat tensor of int64 for each parameter.
        lattice: lattice of the plan.
    """
    for p, integers in zip(parameters, released, strict=True):
        value = integers.double() * lattice.grid  # the grid is a power of two, so the product is exact if in range
        p.grad = value.to(p.dtype).to(p.device).view(p.shape)


def summed_over_ranks(released: torch.Tensor, device: torch.device, ranks: int) -> torch.Tensor:
    """Return the sum of integers over all ranks, modulo 2^64. The result does not depend on the order of addition."""
    if ranks == 1:
        return released
    summed = released.to(device)
    dist.all_reduce(summed, op=dist.ReduceOp.SUM)
    return summed.cpu()


def check_lattice_options(plan: Plan, module: nn.Module, mode: str, source: str) -> None:
    """Raise `Refused` if the plan has a lattice and an option of `make_private` makes exact integers impossible."""
    if plan.mechanism.lattice is None:
        return
    if isinstance(module, FSDPModule):
        raise Refused(
            "The plan has a lattice. Modules sharded by fully_shard are not supported: the integer norm of an "
            "example's whole gradient must be checked, but no process has the whole gradient.",
            hint="use Opacus's DifferentiallyPrivateDistributedDataParallel or one process, " + WITHOUT,
        )
    if "ghost" in mode:
        raise Refused(
            "The plan has a lattice, so the gradient of each example must be rounded to the grid. Ghost clipping "
            "computes only the sum of the gradients, in floating point.",
            hint="use grad_sample_mode='hooks', which takes little memory with a lattice, because gradients are "
            "computed one example at a time; " + WITHOUT,
        )
    check_lattice_source(plan, source)


def check_lattice_source(plan: Plan, source: str) -> None:
    """Raise `Refused` if the plan has a lattice and its noise would not be made on the host."""
    if plan.mechanism.lattice is not None and source != "host":
        raise Refused(
            f"The plan has a lattice, whose noise is made on the host. Got source={source!r}.",
            hint="use source='host', " + WITHOUT,
        )


def refuse_float_sums(plan: Plan) -> None:
    """Raise `Refused` if the plan has a lattice. `NoiseAdder` calls this, because it adds noise in floating point."""
    if plan.mechanism.lattice is not None:
        raise Refused(
            "The plan has a lattice. NoiseAdder adds noise to sums in floating point, and lattice noise needs exact "
            "sums of integers.",
            hint="use PrivacyEngine; or sum gradients with plan.mechanism.lattice.clipped_sum and add noise with "
            "Run.release; " + WITHOUT,
        )


def refuse_lightning(plan: Plan) -> None:
    """Raise `Refused` if the plan has a lattice. The Lightning callback calls this."""
    if plan.mechanism.lattice is not None:
        raise Refused(
            "The plan has a lattice, so gradients are computed one example at a time. Lightning counts every pass as "
            "a step, and its step numbers would reveal the sizes of the batches.",
            hint="use PrivateTrainer, or PrivacyEngine in your own training loop; " + WITHOUT,
        )
