"""`check_independence`: checks that the gradient of an example does not depend on the other examples of its batch.

Clipping bounds the influence of an example on the sum only if the example changes no gradient but its own. A mean over
all tokens of a batch, a contrastive loss and statistics over the batch violate this condition. The gradients of one
batch do not show the problem, so the check compares the gradients of the same examples in several batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from antiphase._errors import InvalidArgument, Refused
from antiphase.torch._batches import batch_size_of, select, tensors_in
from antiphase.torch._criterion import backward_per_example, is_private_loss
from antiphase.torch._names import unwrapped_name

Loss = Callable[[Any], Any]
# In different batches, the same numbers are summed in a different order, which causes small rounding differences. A
# dependence between examples changes gradients by far more. Tolerances are relative to the gradient of each example,
# since clipping may scale all gradients to the same norm.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}
LOWEST_PRECISION = 0.1  # tolerance for all other dtypes
SHORTEST = 1e-4  # norms below this multiple of the median norm may be rounding errors
HARMLESS = 1e-6  # a change of one gradient by this multiple of the clipping norm is ignored
NO_GRADIENT = 1e-10  # a norm below this multiple of the clipping norm counts as no gradient
DROPOUTS = {
    nn.functional.dropout,
    nn.functional.dropout1d,
    nn.functional.dropout2d,
    nn.functional.dropout3d,
    nn.functional.alpha_dropout,
    nn.functional.feature_alpha_dropout,
    torch.dropout,
    torch.feature_dropout,
    torch.alpha_dropout,
    torch.feature_alpha_dropout,
}
LOSS_HINT = (
    "take the mean over the tokens or parts of each example first, as the losses in antiphase.torch.losses do; remove "
    "contrastive terms, mixup, and statistics over the batch"
)
LAYER_HINT = (
    "replace statistics over the batch by statistics of single examples (GroupNorm or LayerNorm), and remove mixup, "
    "in-batch attention and similar methods"
)
ROWS_HINT = (
    "give every layer one row per example: look up position embeddings for every example, with "
    "position_ids=torch.arange(length).expand(len(tokens), -1), and keep the examples in the first dimension"
)


class Measured(NamedTuple):
    """Summary of the per-example gradients of a batch, as clipping would compute them.

    Args:
        norms: norm of each example's gradient, shape (examples,).
        sums: weighted sum of the examples' gradients, one tensor per parameter.
    """

    norms: torch.Tensor
    sums: list[torch.Tensor]


def check_independence(module: Any, optimizer: Any, reset: Callable[[], None], loss: Loss, batch: Any) -> bool:
    """Raise `Refused` if the gradient of an example changes when other examples are left out of the batch.

    The batch is processed without dropout, first as a whole and then in two parts, for several ways to split it. The
    parts must give the same gradient norms of the examples as the whole batch. Each gradient is then scaled to norm 1,
    and a randomly weighted sum of these gradients must also be the same.

    Returns whether at least two examples have a gradient. If it returns False, the check shows nothing.

    Args:
        module: model, wrapped by Opacus.
        optimizer: private optimizer.
        reset: function that deletes the gradients and activations of a forward and backward pass.
        loss: function that computes the loss of a batch as in training.
        batch: nested tuples, lists and mappings of tensors whose first dimension is the batch.
    """
    size = batch_size_of(batch)
    if size < 2:
        raise InvalidArgument("The check needs at least two examples.", hint="pass a batch of two or more examples")
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(size, generator=generator, dtype=torch.float64) + 0.5
    weights *= torch.where(torch.rand(size, generator=generator) < 0.5, -1.0, 1.0)
    measure = _Measurement(module, optimizer, reset, loss)
    with measure.restored():
        before, buffers = measure.parameter_sums(), measure.buffers()
        norms = measure(batch, weights).norms
        if changed := measure.changed_since(before):
            raise Refused(
                f"The forward pass changes the parameter {changed!r}, from the data and without noise. Layers that are "
                "initialized from the first batch do this.",
                hint="initialize the model before make_private, from public data or without data; start again with a "
                "new model",
            )
        if name := measure.buffer_of_data(buffers, select(batch, [0] * size, size), weights):
            raise Refused(
                f"The forward pass computes the buffer {unwrapped_name(name)!r} from the data, without noise, as "
                "layers with running means or codebooks with moving averages do.",
                hint="remove the layer, or compute its statistics before make_private, from public data",
            )
        present = norms[norms > NO_GRADIENT * measure.clip_norm]
        usual = float(present.median()) if len(present) else measure.clip_norm
        weights /= norms.clamp(min=SHORTEST * usual)
        whole = measure(batch, weights)
        for parts in _splits(size, generator):
            try:
                found = [measure(select(batch, part, size), weights[part]) for part in parts]
            except Exception as error:
                raise Refused(
                    "The model can process the whole batch, but not a part of it, so its layers do not have one row "
                    f"per example. For a part of the batch, the model raised {type(error).__name__}, the cause of this "
                    "error.",
                    hint=ROWS_HINT,
                ) from error
            if wrong := measure.differing(whole, found, parts):
                break
        else:
            return len(present) >= 2
        if measure.differing(measure(batch, weights, seed=1), [whole], [list(range(size))]):
            raise Refused(
                "The gradients of the same batch differ between two passes, so the model or the loss has randomness "
                "other than dropout. The check cannot tell whether examples influence one another.",
                hint="turn off random augmentations such as mixup, or move them into the data set, where each example "
                "is augmented separately",
            )
        layer = measure.mixing_layer(batch, select(batch, parts[0], size), parts[0], size)
    raise _coupled(module, wrong, layer, all_parameters=len(wrong) == len(whole.sums))


def _splits(size: int, generator: torch.Generator) -> Iterator[list[list[int]]]:
    """Yield ways to split a batch into two parts. For any two examples, at least one of the splits separates them."""
    places = torch.randperm(size, generator=generator)
    for bit in range((size - 1).bit_length()):
        yield [((places >> bit) % 2 == side).nonzero().flatten().tolist() for side in (0, 1)]


def _coupled(module: Any, wrong: list[str], layer: str | None, *, all_parameters: bool) -> Refused:
    if layer is not None:
        kind = type(dict(module.named_modules())[layer]).__name__
        return Refused(
            f"Layer {layer!r} ({kind}) mixes the examples of a batch: its output for one example depends on others.",
            hint=LAYER_HINT,
        )
    if all_parameters:
        return Refused(
            "The loss of an example depends on the other examples of the batch. Clipping then does not bound the "
            "influence of an example.",
            hint=LOSS_HINT,
        )
    return Refused(
        f"The gradient of {wrong[0]!r} is not computed per example, although the outputs of all layers are. Number of "
        f"such parameters: {len(wrong)}.",
        hint=ROWS_HINT,
    )


def _differ(first: torch.Tensor, second: torch.Tensor | None) -> bool:
    if second is None or first.shape != second.shape:
        return True
    return not torch.equal(first.nan_to_num(), second.nan_to_num())


@final
class _Measurement:
    """Computes the per-example gradients of batches, without changing the model or the random generators."""

    def __init__(self, module: Any, optimizer: Any, reset: Callable[[], None], loss: Loss) -> None:
        self._module, self._optimizer, self._reset, self._loss = module, optimizer, reset, loss
        names = {id(p): name for name, p in module.named_parameters()}
        self._names = [names[id(p)] for p in optimizer.params]
        self.clip_norm = math.hypot(*optimizer.clip_norms)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """On exit, restore buffers and random generators, and delete all gradients."""
        buffers = self.buffers()
        devices = [p.device for p in self._optimizer.params if p.device.type == "cuda"]
        with torch.random.fork_rng(devices=devices):
            try:
                yield
            finally:
                self._clear()
                self._restore(buffers)

    def parameter_sums(self) -> dict[str, float]:
        """Return the sum of the entries of every parameter, including frozen parameters."""
        return {name: float(p.detach().sum(dtype=torch.float64)) for name, p in self._module.named_parameters()}

    def changed_since(self, before: dict[str, float]) -> str | None:
        """Return the name of a parameter whose sum of entries has changed, or None if there is no such parameter.

        Args:
            before: earlier result of `parameter_sums`.
        """
        now = self.parameter_sums()
        return next((name for name in now if now[name] != before.get(name) and not math.isnan(now[name])), None)

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return copies of all buffers."""
        return {name: value.clone() for name, value in self._module.named_buffers()}

    def buffer_of_data(self, before: dict[str, torch.Tensor], other: Any, weights: torch.Tensor) -> str | None:
        """Return the name of a buffer that depends on the data of the last forward pass, or None.

        Args:
            before: buffers before the last forward pass.
            other: batch with different data and as many examples as the last batch. Used only if the last pass changed
                a buffer.
            weights: weights of the examples of `other`.
        """
        first = self.buffers()
        if not any(_differ(value, before.get(name)) for name, value in first.items()):
            return None
        self._restore(before)
        self(other, weights)
        second = self.buffers()
        return next((name for name, value in first.items() if _differ(value, second.get(name))), None)

    def _restore(self, buffers: dict[str, torch.Tensor]) -> None:
        for name, value in self._module.named_buffers():
            if name in buffers and buffers[name].shape == value.shape:
                value.copy_(buffers[name])

    def __call__(self, batch: Any, weights: torch.Tensor, seed: int = 0) -> Measured:
        loss = self._forward(batch, seed)
        if is_private_loss(loss):
            norms, sums = backward_per_example(loss, weights)
        else:
            norms, sums = self._from_rows(loss, weights)
        self._clear()
        return Measured(norms, sums)

    def _forward(self, batch: Any, seed: int = 0) -> Any:
        self._clear()
        torch.manual_seed(seed)
        with NoDropout():
            return self._loss(batch)

    def _from_rows(self, loss: Any, weights: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        if not isinstance(loss, torch.Tensor) or loss.dim() > 0:
            raise InvalidArgument("The loss must be a single number, as in training.", hint="return loss.mean()")
        loss.backward()  # type: ignore[no-untyped-call]
        pairs = zip(self._names, self._optimizer.params, strict=True)
        found = [self._rows(name, p, len(weights)) for name, p in pairs]
        squares = torch.stack([rows.reshape(len(rows), -1).double().square().sum(1).cpu() for rows in found]).sum(0)
        if not (finite := torch.isfinite(squares)).all():  # in training, such a gradient also counts as zero
            squares[~finite] = 0.0
            for rows in found:
                rows[~finite.to(rows.device)] = 0.0
        return squares.sqrt(), [torch.einsum("i,i...", weights.to(rows), rows) for rows in found]

    @staticmethod
    def _rows(name: str, parameter: Any, examples: int) -> torch.Tensor:
        rows = parameter.grad_sample
        if isinstance(rows, list) and len(rows) == 1:
            rows = rows[0]
        if not isinstance(rows, torch.Tensor):
            raise Refused(
                f"The parameter {name!r} has no gradient, or gradients of several backward passes.",
                hint="use every trained parameter in the loss, or freeze it before make_private",
            )
        if len(rows) != examples:
            raise Refused(f"The gradient of {name!r} does not have one row per example of the batch.", hint=ROWS_HINT)
        return rows

    def differing(self, whole: Measured, parts: list[Measured], places: list[list[int]]) -> list[str]:
        """Return the names of parameters whose gradients differ between the whole batch and its parts.

        Args:
            whole: result for the whole batch. The sums are randomly weighted sums of gradients, scaled to norm 1.
            parts: results for the parts into which the batch was split.
            places: for each part, the indices of its examples in the whole batch.
        """
        wrong = []
        for i, name in enumerate(self._names):
            total = sum(part.sums[i] for part in parts)
            kind = whole.sums[i].dtype
            scale = torch.stack([s.norm().double() for s in (whole.sums[i], *(part.sums[i] for part in parts))]).max()
            # Rounding errors are proportional to the terms of the sum, which may be larger than the sum itself.
            allowed = TOLERANCE.get(kind, LOWEST_PRECISION) * max(float(scale), 1e-3)
            if not (whole.sums[i] - total).norm() <= allowed:
                wrong.append(name)
        if not wrong:
            tolerance, norms = TOLERANCE.get(whole.sums[0].dtype, LOWEST_PRECISION), whole.norms
            own = norms.clamp(min=SHORTEST * float(norms.median()))
            for part, place in zip(parts, places, strict=True):
                limits = tolerance * own[place] + HARMLESS * self.clip_norm
                if not ((norms[place] - part.norms).abs() <= limits).all():
                    return list(self._names)
        return wrong

    def mixing_layer(self, whole: Any, part: Any, rows: list[int], size: int) -> str | None:
        """Return the name of the first layer whose outputs differ between the whole batch and a part of it, or None.

        Args:
            whole: whole batch.
            part: part of the batch.
            rows: indices of the examples of the part in the whole batch.
            size: number of examples in the whole batch.
        """
        outputs = [self._outputs(batch, n) for batch, n in ((whole, size), (part, len(rows)))]
        for name, full in outputs[0].items():
            half = outputs[1].get(name)
            if half is None or half.shape[1:] != full.shape[1:]:
                continue
            wanted = full[rows]
            allowed = TOLERANCE.get(full.dtype, LOWEST_PRECISION) * float(wanted.abs().max().clamp(min=1e-30))
            if not ((wanted - half).abs() <= allowed).all():
                return name
        return None

    def _outputs(self, batch: Any, size: int) -> dict[str, torch.Tensor]:
        """Return, by layer name, the outputs that have one row per example, in the order of computation."""
        found: dict[str, torch.Tensor] = {}

        def keep(name: str, _layer: Any, _inputs: Any, output: Any) -> None:
            first = next(tensors_in(output), None)
            if first is not None and first.dim() > 0 and len(first) == size and first.is_floating_point():
                found.setdefault(name, first.detach())

        handles = [
            layer.register_forward_hook(lambda layer, i, o, name=name: keep(name, layer, i, o))
            for name, layer in self._module.named_modules()
            if layer is not self._module
        ]
        try:
            self._forward(batch)
        finally:
            for handle in handles:
                handle.remove()
        return found

    def _clear(self) -> None:
        for p in self._optimizer.params:
            p.grad = None
        self._reset()


@final
class NoDropout(TorchFunctionMode):
    """Inside this context, dropout returns its input, whether it is called as a layer or as a function."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), named: Any = None) -> Any:
        """Return the input for dropout functions, and call every other function unchanged."""
        named = dict(named or {})
        if function in DROPOUTS:
            return args[0] if args else named["input"]
        if function is nn.functional.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            elif "dropout_p" in named:
                named["dropout_p"] = 0.0
        return function(*args, **named)
