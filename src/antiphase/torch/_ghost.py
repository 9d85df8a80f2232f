"""Ghost clipping in one backward pass: computes the gradient norms and the clipped sums from the same tensors.

A clipped sum is the sum of the clipped gradients of all examples. Notation in this file: `inputs` are the inputs of a
layer. `gradients` are the gradients of the loss with respect to the outputs of the layer, called output gradients.
`rows` are the per-example gradients of a parameter. The first dimension of all three is over the examples.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

import torch
from opacus.grad_sample.conv import compute_conv_grad_sample
from torch import nn
from torch.distributed.tensor import DTensor, Partial

from antiphase._errors import Refused
from antiphase._run import refuse_pickle
from antiphase.torch._names import layer_names, parameter_names
from antiphase.torch._positions import check_repeated
from antiphase.torch._precision import blockwise_sum, factors_like, squared_norms, weighted_sum, widen

Found = dict[torch.Tensor, torch.Tensor]
Kept = tuple[Any, torch.Tensor, torch.Tensor]  # layer, inputs, output gradients
Sums = dict[str, torch.Tensor]
GRAM_BLOCK = 1024  # number of features that are converted to float64 at a time
LARGEST_CANCELLATION = 1e-4  # least ratio of a sum's squared norm to (sum of its terms' norms)^2; see `not_below`


class Formula(NamedTuple):
    """Two functions that compute gradient norms and clipped sums for one type of layer.

    Args:
        squares: maps (layer, inputs, gradients) to the squared gradient norm of each example, shape (examples,).
        sums: maps (layer, inputs, gradients, factors) to a dict from parameter name to the sum over examples of factor
            times gradient. `factors` has shape (examples,).
    """

    squares: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]
    sums: Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], Sums]


class ClippedSums(NamedTuple):
    """Sums of the clipped gradients of one physical batch.

    Args:
        sums: one tensor per trained parameter, in the order of the optimizer.
        examples: number of examples in the batch.
    """

    sums: list[torch.Tensor]
    examples: int


@final
class GhostGradients:
    """Records the tensors of one backward pass, and computes the norms and the clipped sums from them.

    For `Linear`, `Embedding` and convolutions, it records the inputs and the output gradients. For other layers, it
    records the per-example gradients.

    Opacus computes the clipped sum with a second backward pass over reweighted losses. That pass could differ from the
    first pass, which computed the norms. For example, the backward function of a layer may be nonlinear, stateful or
    random, or the losses may not be in the order of the examples. Here, the norms and the sums come from the same
    recorded tensors.
    """

    def __init__(self, module: Any, parameters: list[Any]) -> None:
        self.batch: ClippedSums | None = None
        self.is_padded: Callable[[], bool] = lambda: False
        self._parameters = parameters
        self._names, self._parameter_names = layer_names(module), parameter_names(module)
        # The optimizer's parameters, by layer. They must be stored now, since FSDP replaces parameters during a pass.
        self._owned = {id(layer): dict(layer.named_parameters()) for layer in module.modules()}
        self._tied = _tied_layers(module)
        self._skipped = _skippable(module)
        self._inputs: dict[int, Kept] = {}
        self._rows: dict[int, Sums] = {}
        module.NORM_SAMPLERS = dict.fromkeys(FORMULAS, self._keep_inputs)
        module.GRAD_SAMPLERS = {kind: partial(self._keep, sampler) for kind, sampler in module.GRAD_SAMPLERS.items()}
        for layer in module.modules():
            if hasattr(layer, "ft_compute_sample_grad"):
                layer.ft_compute_sample_grad = partial(self._keep_copied, layer, layer.ft_compute_sample_grad)

    __reduce_ex__ = refuse_pickle

    def clear(self) -> None:
        """Delete all recorded tensors."""
        self.batch = None
        self._inputs.clear()
        self._rows.clear()

    def needed_gradients(self, leaves: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """Return the leaves of the graph that the backward pass must reach, or None for all leaves.

        The backward pass only has to compute the output gradients of every layer. The sums that it stores in `p.grad`
        are not clipped, so they are dropped. To save time, the pass skips the largest matrix products: the weight
        gradients of layers that also have a bias. The pass still reaches these layers through the bias. If the pass
        does not reach a layer, `norms` raises `Refused`.

        Args:
            leaves: all leaves of the graph. A leaf may be an input that requires a gradient instead of a trained
                parameter. If there is such a leaf, None is returned, because the hook of a layer then waits for the
                gradients of the layer's inputs.
        """
        known = {id(p) for p in self._parameters}
        if not all(id(leaf) in known for leaf in leaves):
            return None
        return [leaf for leaf in leaves if id(leaf) not in self._skipped] or None

    def norms(self) -> torch.Tensor:
        """Return the norm of each example's gradient over all parameters together, shape (examples,)."""
        self._check()
        known = {key: _formula(layer).squares(layer, *kept) for key, (layer, *kept) in self._inputs.items()}
        squares = [*known.values(), *(squared_norms(rows) for found in self._rows.values() for rows in found.values())]
        for pair in self._tied:
            if all(key in known for key in pair):
                embedding, linear = (self._inputs[key] for key in pair)
                squares.append(tied_products(embedding, linear, *(known[key] for key in pair)))
        total = torch.stack([square.to(squares[0].device) for square in squares]).sum(0).clamp(min=0)
        for key, (layer, *_) in self._inputs.items():
            if isinstance(layer, nn.Embedding):
                p = self._owned[key]["weight"]
                check_repeated(self._parameter_names[id(p)], p, known[key].to(total.device), total)
        return total.sqrt()

    def clip(self, factors: torch.Tensor) -> None:
        """Multiply each example's gradient by its factor, and keep only the sum, in `batch`."""
        if self.is_padded():  # with FSDP, the last example may be a repeated one; see `zero_padding` in `_shards.py`
            factors = factors.clone()
            factors[-1] = 0.0
        found: Found = {}
        for key, owned in self._owned.items():  # in the same order on all ranks, since FSDP sums over the ranks
            for name, total in self._sums(key, factors).items():
                p = owned[name]
                value = _over_ranks(total.view(p.shape), p)
                found[p] = found[p] + value if p in found else value  # a tied weight has two layers
        self.clear()
        self.batch = ClippedSums([found[p] for p in self._parameters], len(factors))

    def take(self) -> ClippedSums | None:
        """Return the clipped sums and delete them from this object. Return None if there are no sums."""
        batch, self.batch = self.batch, None
        return batch

    def _sums(self, key: int, factors: torch.Tensor) -> Sums:
        if key in self._inputs:
            layer, inputs, gradients = self._inputs.pop(key)
            names = {name for name, p in self._owned[key].items() if p.requires_grad}
            found = _formula(layer).sums(layer, inputs, gradients, factors_like(factors, gradients))
            return {name: total for name, total in found.items() if name in names}
        rows = self._rows.pop(key, {})
        return {name: weighted_sum(factors, row) for name, row in rows.items()}

    def _check(self) -> None:
        """Raise `Refused` if a gradient is missing or rounded, or if layers have different numbers of examples."""
        lengths, kinds, found = {}, set(), set()
        for key, (_, _, gradients) in self._inputs.items():
            lengths[key] = len(gradients)
            kinds.add(gradients.dtype)
            found |= {id(p) for name, p in self._owned[key].items() if name in ("weight", "bias")}
        for key, rows in self._rows.items():
            lengths[key] = len(next(iter(rows.values())))
            kinds |= {row.dtype for row in rows.values()}
            found |= {id(self._owned[key][name]) for name in rows}
        self._check_uses()
        if missing := [p for p in self._parameters if id(p) not in found]:
            ran = getattr(missing[0], "_forward_counter", 0)
            how = "its layer ran, but the loss does not depend on it" if ran else "its layer was not called"
            raise Refused(
                f"The parameter {self._parameter_names[id(missing[0])]!r} has no per-example gradient: {how}. Number "
                f"of such parameters: {len(missing)}.",
                hint="use every trained parameter in the forward pass of its own layer and in the loss of every batch, "
                "or freeze it with requires_grad_(False) before make_private",
            )
        if low := kinds - {torch.float32, torch.float64}:
            raise Refused(
                f"The parameters are in {', '.join(sorted(map(str, low)))}, so ghost clipping would round the norms "
                "and the sum of the gradients.",
                hint="keep the parameters in float32 with model.float(), and use autocast for the forward pass",
            )
        if len(set(lengths.values())) > 1:
            usual = max(lengths.values())
            other = next(self._names[key] for key, length in lengths.items() if length != usual)
            raise Refused(
                f"Layer {other!r} has gradients for a different number of examples than the other layers.",
                hint="make the batch the first dimension of the input of every layer",
            )

    def _check_uses(self) -> None:
        """Raise `Refused` if layers share a parameter, except for a weight of one Embedding and one Linear."""
        keys: dict[int, list[int]] = {}
        for key in self._inputs:
            for name in ("weight", "bias"):
                if (p := self._owned[key].get(name)) is not None and p.requires_grad:
                    keys.setdefault(id(p), []).append(key)
        for key, rows in self._rows.items():
            for name in rows:
                keys.setdefault(id(self._owned[key][name]), []).append(key)
        for p, found in keys.items():
            pairs = [pair for pair in self._tied if set(pair) == set(found) <= set(self._inputs)]
            if len(found) > 1 and not pairs:
                raise Refused(
                    f"The parameter {self._parameter_names[p]!r} is used by several layers. Ghost clipping would "
                    "compute too small a norm for the sum of their gradients.",
                    hint="use grad_sample_mode='hooks'",
                )

    def _keep_inputs(self, layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor) -> Found:
        """Record the inputs and output gradients of a layer.

        Opacus calls this function in place of its own function for the gradient norms of the layer. The norms that this
        function returns are zero, because `norms` computes them later.
        """
        if id(layer) in self._inputs:
            raise Refused(
                f"Layer {self._names[id(layer)]!r} is used twice in one forward pass.",
                hint="use grad_sample_mode='hooks'",
            )
        activations, backprops = _in_full_precision(layer, activations, backprops)
        self._inputs[id(layer)] = (layer, activations[0], backprops)
        return {p: backprops.new_zeros(len(backprops)) for p in layer.parameters() if p.requires_grad}

    def _keep(self, sampler: Any, layer: Any, *given: Any) -> Found:
        """Record the per-example gradients from Opacus's `sampler`. Return zeros to Opacus in their place."""
        names = {id(p): name for name, p in layer.named_parameters()}
        found: Found = sampler(layer, *_in_full_precision(layer, *given))
        for p, rows in found.items():
            if p.requires_grad:
                self._add(id(layer), names[id(p)], rows)
        return {p: rows.new_zeros(len(rows), 1) for p, rows in found.items()}

    def _keep_copied(self, layer: Any, sampler: Any, parameters: list[torch.Tensor], *given: Any) -> Any:
        """Record the per-example gradients that functorch computes from a copy of the layer, as `_keep` does."""
        [inputs], gradients = _in_full_precision(layer, [given[0]], given[1])
        found = sampler(parameters, inputs, gradients)
        for (name, p), rows in zip(layer.named_parameters(), found, strict=True):
            if p.requires_grad:
                self._add(id(layer), name, rows)
        return [rows.new_zeros(len(rows), 1) for rows in found]

    def _add(self, key: int, name: str, rows: torch.Tensor) -> None:
        """Add per-example gradients from one use of a layer.

        At the later positions of the sequences, a recurrent layer has fewer rows, because shorter sequences have ended.
        """
        kept = self._rows.setdefault(key, {})
        if name in kept:
            shorter, longer = sorted((kept[name], rows), key=len)
            rows = longer.clone()
            rows[: len(shorter)] += shorter
        kept[name] = rows


def _in_full_precision(
    layer: nn.Module, activations: list[torch.Tensor], backprops: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Convert the inputs and output gradients of a layer to the dtype of its parameters, if that is more precise.

    Under autocast, the inputs and output gradients may have been rounded to bfloat16 or float16. This does not affect
    privacy: the rounded values define the gradient of an example. The norm of this gradient and the clipped sum are
    both computed from these values in full precision. The rounding does not depend on the number of examples, because
    `backward` starts from the sum of the losses.
    """
    kinds = [p.dtype for p in layer.parameters()]
    for kind in kinds:
        if kind != backprops.dtype:
            backprops = backprops.to(torch.promote_types(kind, backprops.dtype))
    return [x.to(backprops.dtype) if x.is_floating_point() else x for x in activations], backprops


def _tied_layers(module: nn.Module) -> list[tuple[int, int]]:
    """Return the ids of every pair (Embedding, Linear) that shares a trainable weight."""
    embeddings = {id(layer.weight): id(layer) for layer in module.modules() if isinstance(layer, nn.Embedding)}
    return [
        (embeddings[id(layer.weight)], id(layer))
        for layer in module.modules()
        if isinstance(layer, nn.Linear) and layer.weight.requires_grad and id(layer.weight) in embeddings
    ]


def tied_products(embedding: Kept, linear: Kept, e_square: torch.Tensor, l_square: torch.Tensor) -> torch.Tensor:
    """Return 2 * <E, L> per example, rounded up, for a weight that an Embedding and a Linear share.

    E and L are the gradients of the two uses. The gradient of the weight is E + L, and
    ||E + L||^2 = ||E||^2 + ||L||^2 + 2 * <E, L>. Row v of E is the sum of the embedding's output gradients at the
    positions where the token is v. Row v of L is sum_s g_s[v] * a_s over the positions s of the linear layer. Here g_s
    is the output gradient and a_s is the input at position s. So <E, L> = sum_v sum_s g_s[v] * <E_v, a_s>. Only the
    tokens v of the example contribute to this sum.

    If E and L cancel, E + L is much smaller than E and L, but the rounding errors of E + L are not. So ||E + L||^2 is
    raised to at least a fraction of (||E|| + ||L||)^2, as `not_below` explains. The products are computed in float64,
    and a margin that covers their rounding errors is added.

    Args:
        embedding: embedding layer, its tokens and its output gradients.
        linear: linear layer, its inputs and its output gradients.
        e_square: upper bound on ||E||^2 per example, shape (examples,).
        l_square: upper bound on ||L||^2 per example, shape (examples,).
    """
    examples, words, rows = _table_rows(*embedding)
    count = len(e_square)
    sizes = torch.bincount(examples, minlength=count)
    slots = torch.arange(len(examples), device=examples.device) - (sizes.cumsum(0) - sizes)[examples]
    width = int(sizes.max())
    e = rows.new_zeros(count, width, rows.shape[1])
    e[examples, slots] = rows
    tokens = words.new_zeros(count, width)
    tokens[examples, slots] = words
    _, inputs, gradients = linear
    a, g = (x.flatten(1, -2) if x.dim() > 2 else x[:, None] for x in (inputs, gradients))
    a, g = widen(a).to(e.device), g.to(e.device)
    picked = widen(g.gather(2, tokens[:, None].expand(-1, g.shape[1], -1)))  # (examples, positions, width)
    products = ((e @ a.mT) * picked.mT).sum((1, 2))
    terms = e.flatten(1).norm(dim=1) * (a.norm(dim=2) * picked.norm(dim=2)).sum(1)
    roundings = e.shape[2] + width * a.shape[1] + 2
    margin = roundings * torch.finfo(e.dtype).eps * terms
    both = e_square + l_square.to(e_square.device)
    lengths = (e_square.sqrt() + l_square.to(e_square.device).sqrt()).square()
    return not_below(both + 2 * products, lengths) - both + 2 * margin


def _skippable(module: nn.Module) -> set[int]:
    """Return the ids of the weights that `needed_gradients` leaves out: weights of layers with a trainable bias.

    Weights sharded by FSDP are not left out, because FSDP replaces the parameters during a pass. Weights that several
    layers share are not left out either, because the pass reaches an Embedding only through its weight.
    """
    owners = Counter(id(p) for layer in module.modules() for p in layer._parameters.values() if p is not None)
    return {
        id(layer.weight)
        for layer in module.modules()
        if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))
        and not isinstance(layer.weight, DTensor)
        and owners[id(layer.weight)] == 1
        and _has_bias(layer)
    }


def conv_gradients(layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor) -> Found:
    """Return per-example gradients from Opacus's convolution function, called with contiguous inputs.

    Opacus's function assumes row-major memory when it reads patches. With a different memory format, such as channels
    last, it would read wrong values, even from a different example. Calling `contiguous` is not enough: PyTorch
    considers a one-pixel image contiguous even in channels last format, so `contiguous` does not change its strides. A
    padded copy of the image is then not in row-major order. So the input is also flattened and reshaped.

    Opacus's function also ignores `padding_mode` and pads with zeros, so any other padding is added first.
    """
    inputs = activations[0]
    if layer.padding_mode != "zeros":
        inputs = nn.functional.pad(inputs, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        layer = copy.copy(layer)
        layer.padding = (0,) * len(layer.kernel_size)
    in_order = inputs.contiguous().view(-1).view(inputs.shape)
    found: Found = compute_conv_grad_sample(layer, [in_order], backprops)
    return found


def conv_squares(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """Return upper bounds on the squared gradient norms of a convolution, shape (examples,).

    A patch is the part of the input from which one output position is computed. An input value is in at most one patch
    for each spatial position of the kernel. The rounding margin uses this to bound the norms of the patches.
    """
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
    """Return the clipped sums of a convolution. Per-example gradients are in memory for only one layer at a time."""
    rows = _conv_rows(layer, inputs, gradients)
    return {name: weighted_sum(factors, row) for name, row in rows.items()}


def _conv_rows(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor) -> Sums:
    found = conv_gradients(layer, [inputs], gradients)
    return {name: found[p] for name, p in layer.named_parameters() if p.requires_grad}


def embedding_squares(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """Return the squared gradient norms of an embedding.

    If an example looks up a row of the table several times, the gradients are added before the norm is computed.
    """
    examples, _, rows = _table_rows(layer, inputs, gradients)
    return rows.new_zeros(len(inputs)).index_add_(0, examples, rows.square().sum(1))


def embedding_sums(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor, factors: torch.Tensor) -> Sums:
    """Return the clipped sum for the whole embedding table."""
    examples, tokens, rows = _table_rows(layer, inputs, gradients)
    table = rows.new_zeros(layer.num_embeddings, layer.embedding_dim)
    return {"weight": table.index_add_(0, tokens, rows * factors[examples, None]).to(gradients.dtype)}


def _table_rows(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the gradient of every table row that each example looks up.

    Returns three tensors with one entry per (example, table row): the example, the table row and the gradient.
    """
    tokens, size = inputs.reshape(len(inputs), -1), layer.num_embeddings
    pairs = tokens + size * torch.arange(len(tokens), device=tokens.device)[:, None]
    used, places = torch.unique(pairs, return_inverse=True)
    values = widen(gradients.reshape(-1, layer.embedding_dim))
    rows = values.new_zeros(len(used), layer.embedding_dim).index_add_(0, places.flatten(), values)
    if layer.padding_idx is not None:
        rows[used % size == layer.padding_idx] = 0.0  # the padding row is not trained
    return used // size, used % size, rows


def linear_squares(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """Return the squared gradient norms of a linear layer, shape (examples,).

    The input may have dimensions between batch and features, such as the positions of a sequence. At each position t,
    let a_t be the input and g_t the output gradient. The gradient of an example is G = sum_t g_t a_t^T, so
    ||G||^2 = sum_{s,t} <g_s, g_t> * <a_s, a_t>.
    """
    a, square = inputs.to(gradients.dtype), widen(gradients.new_zeros(len(gradients)))
    if gradients.dim() < 3:
        length = squared_norms(gradients)
        if layer.weight.requires_grad:
            square = square + length * squared_norms(a)
        return square + length if _has_bias(layer) else square
    g, a = (x.flatten(1, -2) for x in (gradients, a))
    if layer.weight.requires_grad:
        gram_g, gram_a = _gram(g), _gram(a)
        products = (gram_g * gram_a).sum((1, 2), dtype=square.dtype)
        length_g, length_a = (x.diagonal(dim1=1, dim2=2).sqrt() for x in (gram_g, gram_a))
        terms = (length_g * length_a).sum(1).square()
        rounding = (g.shape[2] + a.shape[2] + 4) * torch.finfo(gram_g.dtype).eps
        square = square + not_below(products, terms) + rounding * terms
    if _has_bias(layer):
        lengths_g = squared_norms(g.flatten(0, 1)).sqrt().view(g.shape[:2])
        square = square + not_below(squared_norms(g.sum(1)), lengths_g.sum(1).square())
    return square


def linear_sums(layer: Any, inputs: torch.Tensor, gradients: torch.Tensor, factors: torch.Tensor) -> Sums:
    """Return the clipped sums of a linear layer, from matrix products over all examples and positions."""
    g = gradients * factors.view(-1, *[1] * (gradients.dim() - 1))
    g, a = (x.reshape(-1, x.shape[-1]) for x in (g, inputs.to(g.dtype)))
    found = {}
    if layer.weight.requires_grad:
        found["weight"] = blockwise_sum(lambda g, a: g.mT @ a, g, a)
    if _has_bias(layer):
        found["bias"] = blockwise_sum(lambda g: g.sum(0), g)
    return found


def _has_bias(layer: Any) -> bool:
    return layer.bias is not None and layer.bias.requires_grad


def _gram(x: torch.Tensor) -> torch.Tensor:
    """Return the dot products of all pairs of positions, per example, in float64 if the device supports it.

    Float32 is not enough, because an adversary can choose an example for which all rounding errors have the same sign.
    Products of two float32 numbers are exact in float64 and do not underflow.
    """
    found = x.new_zeros(len(x), x.shape[1], x.shape[1], dtype=widen(x[:0]).dtype)
    for block in torch.split(x, GRAM_BLOCK, dim=2):  # so that only a part of x is copied at a time
        wide = widen(block)
        found.baddbmm_(wide, wide.mT)
    return found


def not_below(square: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    """Return the squared norm of a sum over positions, but at least 1e-4 times (sum of the norms of its terms)^2.

    The clipped sum over the batch is computed in the dtype of the gradients. Its rounding errors are proportional to
    the norms of the terms, even if the terms cancel. So if the norms of an example's terms add up to more than a
    hundred times the norm of their sum, the example is clipped further. The norms of its clipped terms then add up to
    at most a hundred times the clipping norm. If the terms of different positions are independent, further clipping
    happens only for about 10,000 positions or more.

    Args:
        square: squared norm, shape (examples,).
        terms: (sum over positions of the norm of the term)^2, shape (examples,).
    """
    return torch.maximum(square, LARGEST_CANCELLATION * terms)


def with_margin(square: torch.Tensor, terms: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Add a rounding margin to the computed squared norm of a sum over positions.

    The norm and the clipped sum are computed in different ways. The rounding errors of both are proportional to the
    norms of the terms of the sum over positions. If the terms cancel, these norms are far larger than the norm of the
    sum. Without a margin, the computed norm could then be far too small.

    Args:
        square: squared norm as computed, shape (examples,).
        terms: upper bound on (sum over positions of the norm of the term)^2, shape (examples,).
        dtype: dtype of the gradients.
    """
    return square + 16 * torch.finfo(dtype).eps * terms


def _over_ranks(total: torch.Tensor, parameter: Any) -> torch.Tensor:
    """With FSDP, sum `total` over all ranks and return this rank's shard. Otherwise return `total`."""
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
