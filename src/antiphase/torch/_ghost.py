"""Ghost clipping in one backward pass: norms and clipped sums, both from the same tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

import torch
from opacus.grad_sample.conv import compute_conv_grad_sample
from torch import nn
from torch.distributed.tensor import DTensor, Partial

from antiphase._errors import Refused
from antiphase._run import refuse_pickle
from antiphase.torch._precision import NO_AUTOCAST, squared_norms, widen

Found = dict[torch.Tensor, torch.Tensor]
Sums = dict[str, torch.Tensor]
GRAM_BLOCK = 1024  # entries of a float32 dot product; blocks are added in float64


class Formula(NamedTuple):
    """How the norms and the clipped sum of a layer follow from its inputs and the gradients of its outputs.

    Args:
        squares: (layer, inputs, gradients) to the squared norm for each example.
        sums: (layer, inputs, gradients, factors) to the sum of all examples' gradients times their factors, by name.
    """

    squares: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]
    sums: Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], Sums]


class ClippedSums(NamedTuple):
    """The clipped sums of one physical batch, in the order of the trained parameters, and its number of examples."""

    sums: list[torch.Tensor]
    examples: int


@final
class GhostGradients:
    """What one backward pass keeps, to compute norms and clipped sums from it.

    For `Linear`, `Embedding` and convolutions these are the inputs and the gradients of the outputs, else the gradients
    of each example. Every row is scaled by its own norm, whatever the backward pass did. A second, weighted pass could
    differ from the one that gave the norms: if it is not linear, has state or is random, or if the losses are in
    another order than the rows of the layers.
    """

    def __init__(self, module: Any, parameters: list[Any]) -> None:
        self.batch: ClippedSums | None = None
        self.is_padded: Callable[[], bool] = lambda: False
        self._parameters = parameters
        self._names = {id(layer): name for name, layer in module.named_modules()}
        # FSDP replaces the parameters of a layer during a pass; these are the ones that the optimizer has.
        self._owned = {id(layer): dict(layer.named_parameters()) for layer in module.modules()}
        self._inputs: dict[int, tuple[Any, torch.Tensor, torch.Tensor]] = {}
        self._rows: dict[int, Sums] = {}
        module.NORM_SAMPLERS = dict.fromkeys(FORMULAS, self._keep_inputs)
        module.GRAD_SAMPLERS = {kind: partial(self._keep, sampler) for kind, sampler in module.GRAD_SAMPLERS.items()}
        for layer in module.modules():
            if hasattr(layer, "ft_compute_sample_grad"):
                layer.ft_compute_sample_grad = partial(self._keep_copied, layer, layer.ft_compute_sample_grad)

    __reduce_ex__ = refuse_pickle

    def clear(self) -> None:
        """Drop everything."""
        self.batch = None
        self._inputs.clear()
        self._rows.clear()

    def norms(self) -> torch.Tensor:
        """The norm of each example's gradient, over all parameters."""
        self._check()
        squares = [_formula(layer).squares(layer, *kept) for layer, *kept in self._inputs.values()]
        squares += [squared_norms(rows) for found in self._rows.values() for rows in found.values()]
        return torch.stack([square.to(squares[0].device) for square in squares]).sum(0).sqrt()

    def clip(self, factors: torch.Tensor) -> None:
        """Multiply each example's gradient by its factor, and keep only the sum."""
        if self.is_padded():
            factors = factors.clone()
            factors[-1] = 0.0
        found: Found = {}
        for key, owned in self._owned.items():  # in the order of the model: with FSDP, ranks add up together
            for name, total in self._sums(key, factors).items():
                found[owned[name]] = _over_ranks(total.view(owned[name].shape), owned[name])
        self.clear()
        self.batch = ClippedSums([found[p] for p in self._parameters], len(factors))

    def take(self) -> ClippedSums | None:
        """The clipped sums, once."""
        batch, self.batch = self.batch, None
        return batch

    def _sums(self, key: int, factors: torch.Tensor) -> Sums:
        if key in self._inputs:
            layer, inputs, gradients = self._inputs.pop(key)
            names = {name for name, p in self._owned[key].items() if p.requires_grad}
            found = _formula(layer).sums(layer, inputs, gradients, factors.to(gradients))
            return {name: total for name, total in found.items() if name in names}
        rows = self._rows.pop(key, {})
        return {name: torch.einsum("i,i...", factors.to(row), row) for name, row in rows.items()}

    def _check(self) -> None:
        """Refuse a pass that misses a parameter, or in which layers have different numbers of rows."""
        lengths, kinds, found = {}, set(), set()
        for key, (_, _, gradients) in self._inputs.items():
            lengths[key] = len(gradients)
            kinds.add(gradients.dtype)
            found |= {id(p) for p in self._owned[key].values()}
        for key, rows in self._rows.items():
            lengths[key] = len(next(iter(rows.values())))
            kinds |= {row.dtype for row in rows.values()}
            found |= {id(self._owned[key][name]) for name in rows}
        if any(id(p) not in found for p in self._parameters):
            raise Refused(
                "A trained parameter got no gradient, or none that belongs to single examples.",
                hint="use every trained parameter in the forward pass of its own layer, or freeze it before "
                "make_private",
            )
        if low := kinds - {torch.float32, torch.float64}:
            raise Refused(
                f"With ghost clipping, gradients were computed in {', '.join(sorted(map(str, low)))}, so their norms "
                "and their sum are rounded.",
                hint=NO_AUTOCAST,
            )
        if len(set(lengths.values())) > 1:
            usual = max(lengths.values())
            other = next(self._names[key] for key, length in lengths.items() if length != usual)
            raise Refused(
                f"Layer {other!r} has gradients of another number of examples than other layers.",
                hint="every layer must have the examples in its first dimension",
            )

    def _keep_inputs(self, layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor) -> Found:
        """In place of Opacus's function for norms; what it returns is not used."""
        if id(layer) in self._inputs:
            raise Refused(
                f"Layer {self._names[id(layer)]!r} is used twice in a pass.", hint="use grad_sample_mode='hooks'"
            )
        self._inputs[id(layer)] = (layer, activations[0], backprops)
        return {p: backprops.new_zeros(len(backprops)) for p in layer.parameters() if p.requires_grad}

    def _keep(self, sampler: Any, layer: Any, *given: Any) -> Found:
        """In place of Opacus's function for gradients; what it returns is not used, but its length is."""
        names = {id(p): name for name, p in layer.named_parameters()}
        found: Found = sampler(layer, *given)
        for p, rows in found.items():
            if p.requires_grad:
                self._add(id(layer), names[id(p)], rows)
        return {p: rows.new_zeros(len(rows), 1) for p, rows in found.items()}

    def _keep_copied(self, layer: Any, sampler: Any, parameters: list[torch.Tensor], *given: Any) -> Any:
        found = sampler(parameters, *given)
        for (name, p), rows in zip(layer.named_parameters(), found, strict=True):
            if p.requires_grad:
                self._add(id(layer), name, rows)
        return [rows.new_zeros(len(rows), 1) for rows in found]

    def _add(self, key: int, name: str, rows: torch.Tensor) -> None:
        """Add the gradients of another use. Recurrent layers have fewer rows once some sequences have ended."""
        kept = self._rows.setdefault(key, {})
        if name in kept:
            shorter, longer = sorted((kept[name], rows), key=len)
            rows = longer.clone()
            rows[: len(shorter)] += shorter
        kept[name] = rows


def conv_gradients(layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor) -> Found:
    """Call Opacus's function with contiguous inputs: it reads patches as if memory followed the order of dimensions.

    With channels or batch last, it would read other values of the example, or those of another example. An image of one
    pixel counts as contiguous even with channels last, but its padded version is not.
    """
    inputs = activations[0]
    in_order = inputs.contiguous().view(-1).view(inputs.shape)
    found: Found = compute_conv_grad_sample(layer, [in_order], backprops)
    return found


def conv_squares(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """Each input is in at most as many patches as the kernel has entries."""
    places, positions = math.prod(layer.kernel_size), math.prod(gradients.shape[2:])
    total = squared_norms(gradients)
    terms = {"weight": places * squared_norms(inputs), "bias": torch.full_like(total, positions)}
    return torch.stack(
        [
            with_margin(squared_norms(rows), total * terms[name], gradients.dtype)
            for name, rows in _conv_rows(layer, inputs, gradients).items()
        ]
    ).sum(0)


def conv_sums(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor, factors: torch.Tensor) -> Sums:
    """Of the gradients of all examples, which exist for one layer at a time."""
    rows = _conv_rows(layer, inputs, gradients)
    return {name: torch.einsum("i,i...", factors, row) for name, row in rows.items()}


def _conv_rows(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor) -> Sums:
    found = conv_gradients(layer, [inputs], gradients)
    return {name: found[p] for name, p in layer.named_parameters() if p.requires_grad}


def embedding_squares(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """Positions that look up the same row are added first."""
    examples, _, rows = _table_rows(layer, inputs, gradients)
    return rows.new_zeros(len(inputs)).index_add_(0, examples, rows.square().sum(1))


def embedding_sums(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor, factors: torch.Tensor) -> Sums:
    """The gradient of the whole table."""
    examples, tokens, rows = _table_rows(layer, inputs, gradients)
    table = gradients.new_zeros(layer.num_embeddings, layer.embedding_dim)
    return {"weight": table.index_add_(0, tokens, (rows * factors[examples, None]).to(table))}


def _table_rows(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The gradient of every row that an example looks up: examples, rows of the table, gradients."""
    tokens, size = inputs.reshape(len(inputs), -1), layer.num_embeddings
    pairs = tokens + size * torch.arange(len(tokens), device=tokens.device)[:, None]
    used, places = torch.unique(pairs, return_inverse=True)
    values = widen(gradients.reshape(-1, layer.embedding_dim))
    rows = values.new_zeros(len(used), layer.embedding_dim).index_add_(0, places.flatten(), values)
    if layer.padding_idx is not None:
        rows[used % size == layer.padding_idx] = 0.0  # its row of the table is not trained
    return used // size, used % size, rows


def linear_squares(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """For any number of dimensions between the first and the last.

    With T positions the gradient is G = sum_t g_t a_t^T, so ||G||^2 = sum_st <g_s, g_t> <a_s, a_t>.
    """
    a, square = inputs.to(gradients.dtype), widen(gradients.new_zeros(len(gradients)))
    if gradients.dim() < 3:
        length = squared_norms(gradients)
        if layer.weight.requires_grad:
            square = square + length * squared_norms(a)
        return square + length if _has_bias(layer) else square
    g, a = (x.flatten(1, -2) for x in (gradients, a))
    total = widen(g.norm(dim=2))
    if layer.weight.requires_grad:
        products = (_gram(g) * _gram(a)).sum((1, 2), dtype=square.dtype).clamp(min=0)
        square = square + with_margin(products, (total * a.norm(dim=2)).sum(1).square(), g.dtype)
    if _has_bias(layer):
        square = square + with_margin(squared_norms(g.sum(1)), total.sum(1).square(), g.dtype)
    return square


def linear_sums(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor, factors: torch.Tensor) -> Sums:
    """One matrix product over all examples and positions."""
    g = gradients * factors.view(-1, *[1] * (gradients.dim() - 1))
    g, a = (x.reshape(-1, x.shape[-1]) for x in (g, inputs.to(g.dtype)))
    found = {}
    if layer.weight.requires_grad:
        found["weight"] = g.mT @ a
    if _has_bias(layer):
        found["bias"] = g.sum(0)
    return found


def _has_bias(layer: Any) -> bool:
    return layer.bias is not None and layer.bias.requires_grad


def _gram(x: torch.Tensor) -> torch.Tensor:
    """The products of all pairs of positions. Long ones are added up from blocks, in float64."""
    blocks = torch.split(x, GRAM_BLOCK, dim=2)
    found = blocks[0] @ blocks[0].mT
    for block in blocks[1:]:
        found = widen(found) + block @ block.mT
    return found


def with_margin(square: torch.Tensor, terms: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The squared norm of a sum over positions, plus a margin for rounding.

    Norms and gradients are computed in different ways, and the rounding errors of both are relative to the terms of the
    sum. If positions cancel, the terms are far larger than the sum, and the computed norm could be far too small.

    Args:
        square: square of the norm as computed.
        terms: at least the square of the sum of the norms of the single positions.
        dtype: of the gradients.
    """
    return square + 16 * torch.finfo(dtype).eps * terms


def _over_ranks(total: torch.Tensor, parameter: Any) -> torch.Tensor:
    """The shard of the sum over all ranks with FSDP, else the sum itself."""
    if not isinstance(parameter, DTensor):
        return total
    mesh = parameter.device_mesh
    summed: torch.Tensor = DTensor.from_local(total, mesh, [Partial()]).redistribute(mesh, parameter.placements)
    return summed


def _formula(layer: nn.Module) -> Formula:
    return next(formula for kind, formula in FORMULAS.items() if isinstance(layer, kind))


CONVOLUTION = Formula(conv_squares, conv_sums)
FORMULAS: dict[type[nn.Module], Formula] = {
    nn.Linear: Formula(linear_squares, linear_sums),
    nn.Embedding: Formula(embedding_squares, embedding_sums),
    nn.Conv1d: CONVOLUTION,
    nn.Conv2d: CONVOLUTION,
    nn.Conv3d: CONVOLUTION,
}
