"""Corrects Opacus's per-example gradients for some layers, and checks that row i of each layer belongs to example i."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, final

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping as Ghost
from opacus.grad_sample.embedding import compute_embedding_grad_sample
from opacus.layers.dp_rnn import DPRNNBase, RNNLinear
from opacus.utils.module_utils import requires_grad, trainable_parameters
from opacus.utils.tensor_utils import sum_over_all_but_batch_and_last_n
from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.rnn import PackedSequence

from antiphase._errors import Refused
from antiphase._run import refuse_pickle
from antiphase.torch._compile import untraced
from antiphase.torch._criterion import gradient_version
from antiphase.torch._ghost import GhostGradients, conv_gradients
from antiphase.torch._grouped_rows import add_rows, group_inputs
from antiphase.torch._names import layer_names, parameter_names

IN_PLACE = "is a view and is being modified inplace"


def patch_samplers(module: Any, parameters: list[torch.Tensor], rows_per_example: int = 1) -> None:
    """Install the functions of this file and of `_ghost.py` in one wrapped module. Opacus itself is not patched.

    Args:
        module: model, wrapped by Opacus.
        parameters: all trained parameters, in the order of the optimizer.
        rows_per_example: number of consecutive rows whose gradients are added for each example.
    """
    if hasattr(module, "GRAD_SAMPLERS"):
        more = {
            nn.Conv1d: conv_gradients,
            nn.Conv2d: conv_gradients,
            nn.Conv3d: conv_gradients,
            nn.Embedding: embedding_gradients,
            nn.EmbeddingBag: embedding_bag_gradients,
            nn.LayerNorm: layer_norm_gradients,
        }
        module.GRAD_SAMPLERS = {**module.GRAD_SAMPLERS, **more}
    if hasattr(module, "rearrange_grad_samples"):
        module.layer_inputs = LayerInputs(module, parameters)
    if rows_per_example > 1:
        add_rows(module, rows_per_example)
    if hasattr(module, "NORM_SAMPLERS"):
        module.ghost_gradients = GhostGradients(module, parameters)
        if rows_per_example > 1:
            group_inputs(module, rows_per_example)
    elif hasattr(module, "layer_inputs"):
        module.GRAD_SAMPLERS = {kind: partial(stored_gradients, f) for kind, f in module.GRAD_SAMPLERS.items()}
    for layer in module.modules():
        if isinstance(layer, DPRNNBase):
            layer.register_forward_pre_hook(check_sequences, with_kwargs=True)


def order_gradients(module: nn.Module) -> None:
    """Make the gradients of the outputs of InstanceNorm layers contiguous. Call it after Opacus's hooks are registered.

    On a CPU, PyTorch 2.13 computes wrong gradients for the inputs of `InstanceNorm2d` and `InstanceNorm3d` if the
    gradient of the output is in the memory order (positions, examples, channels). Recurrent layers, and sequences whose
    first dimension is the position, cause this order. The gradient of one example then depends on the other examples.
    """
    for layer in module.modules():
        if isinstance(layer, _InstanceNorm):
            layer.register_forward_hook(_order_gradient, prepend=True)  # before Opacus reads the gradient


@untraced
def _order_gradient(_layer: nn.Module, _inputs: Any, output: Any) -> None:
    if isinstance(output, torch.Tensor) and output.requires_grad:
        output.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]


def embedding_gradients(
    layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor
) -> dict[torch.Tensor, torch.Tensor]:
    """Return per-example gradients of Embedding. Opacus's own function would also train the padding row."""
    found: dict[torch.Tensor, torch.Tensor] = compute_embedding_grad_sample(layer, activations, backprops)
    if layer.padding_idx is not None:
        for rows in found.values():
            rows[:, layer.padding_idx] = 0.0
    return found


def embedding_bag_gradients(
    layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor
) -> dict[torch.Tensor, torch.Tensor]:
    """Return per-example gradients of EmbeddingBag. Opacus's own function counts a repeated token only once."""
    if layer.mode == "max":
        raise Refused(
            "The gradients of an EmbeddingBag with mode='max' cannot be computed for each example.",
            hint="use mode='sum' or 'mean', or an Embedding and torch.amax",
        )
    tokens, count = activations[0], len(backprops)
    if len(activations) > 1:
        places = torch.arange(len(tokens), device=tokens.device)
        bags = torch.searchsorted(activations[1].contiguous(), places, right=True) - 1
    else:
        bags = torch.arange(count, device=tokens.device).repeat_interleave(tokens.shape[1])
    tokens = tokens.flatten()
    used = torch.ones_like(tokens, dtype=torch.bool) if layer.padding_idx is None else tokens != layer.padding_idx
    tokens, bags = tokens[used], bags[used]
    if layer.mode == "mean":
        sizes = torch.bincount(bags, minlength=count).clamp(min=1)
        backprops = backprops / sizes[:, None]
    rows = backprops.new_zeros(count, *layer.weight.shape)
    return {layer.weight: rows.index_put_((bags, tokens), backprops[bags], accumulate=True)}


def layer_norm_gradients(
    layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor
) -> dict[torch.Tensor, torch.Tensor]:
    """Return per-example gradients of LayerNorm. Opacus's own function fails if the layer has no bias."""
    found = {}
    if layer.weight.requires_grad:
        normed = nn.functional.layer_norm(activations[0], layer.normalized_shape, eps=layer.eps)
        found[layer.weight] = sum_over_all_but_batch_and_last_n(normed * backprops, layer.weight.dim())
    if layer.bias is not None and layer.bias.requires_grad:
        found[layer.bias] = sum_over_all_but_batch_and_last_n(backprops, layer.bias.dim())
    return found


def stored_gradients(
    sampler: Any, layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor
) -> dict[torch.Tensor, torch.Tensor]:
    """Store the per-example gradients of a layer without copying them. Return the gradients that Opacus must copy.

    The gradients are computed by `sampler(layer, activations, backprops)`. Opacus copies all of them by adding them to
    a tensor of zeros, which takes a tenth of the time of a step. The copy is needed only in three cases: the layer was
    called with only some of the examples, the parameter already has gradients from another use, or the gradients are in
    memory that autograd still uses.
    """
    used = {part.untyped_storage().data_ptr() for part in (*activations, backprops)}
    copied = {}
    for p, rows in sampler(layer, activations, backprops).items():
        is_first = p.requires_grad and not hasattr(p, "_current_grad_sample")
        is_whole = len(rows) == layer.max_batch_len and rows.is_contiguous()
        if is_first and is_whole and rows.untyped_storage().data_ptr() not in used:
            p._current_grad_sample = rows
        else:
            copied[p] = rows
    return copied


class Inputs(list[torch.Tensor]):
    """Inputs of one call of a layer, with the id of the backward pass in which the call was made.

    The id is -1 if the call was made outside of a backward pass.
    """

    backward_pass = -1


@final
class LayerInputs:
    """Records the inputs of each call of a layer, and passes them to Opacus with the gradient of the call's output.

    This replaces Opacus's hooks on layers, except with FSDP. Unlike with Opacus, the hook that receives the gradient is
    on the output tensor and not on the layer. So inputs and gradient always belong to the same call, and the output may
    be changed in place afterwards. Inputs may be passed by keyword. Calls that torch.utils.checkpoint repeats in the
    backward pass are recognized. Errors name the layer.
    """

    def __init__(self, module: Any, parameters: list[torch.Tensor]) -> None:
        self._module, self._parameters = module, parameters
        self._names = layer_names(module)
        self._parameter_names = parameter_names(module)
        self._is_ghost = hasattr(module, "NORM_SAMPLERS")
        self._last: nn.Module | None = None
        self._is_pass_open = self._is_warned = False
        self._versions: list[Any] | None = None
        self._rows: dict[int, int] = {}  # number of rows of the inputs in the last use of each parameter
        self._rearrange = module.rearrange_grad_samples
        module.rearrange_grad_samples = self.take
        if type(module) in (GradSampleModule, Ghost):
            self._forward = module.forward
            # A partial, because Accelerate would mistake a bound method for the module's own forward.
            module.forward = partial(self.forward)
            self._replace_hooks()

    __reduce_ex__ = refuse_pickle

    def _replace_hooks(self) -> None:
        for layer in self._module.modules():
            hooks = layer._forward_hooks.items()
            keys = [key for key, hook in hooks if _is_opacus(hook, self._module, "capture_activations_hook")]
            for key in keys[1:]:  # a layer with several names has one hook for each name
                del layer._forward_hooks[key]
            for key in keys[:1]:
                layer._forward_hooks[key] = self.record
                layer._forward_hooks_with_kwargs[key] = True
            for key, hook in list(layer._backward_hooks.items()):
                if _is_opacus(getattr(hook, "func", None), self._module, "capture_backprops_hook"):
                    del layer._backward_hooks[key]

    def forward(self, *given: Any, **named: Any) -> Any:
        """Call the model. Explain PyTorch's error if the output of a layer with hooks is changed in place."""
        try:
            return self._forward(*given, **named)
        except RuntimeError as error:
            if IN_PLACE not in str(error) or self._last is None:
                raise
            raise Refused(
                f"The output of layer {self._names[id(self._last)]!r}, or of a layer shortly before it, has a backward "
                "hook and is changed in place.",
                hint="write x = x + y instead of x += y, and functional.relu(x) instead of functional.relu_(x) or "
                "inplace=True; or remove your hooks from the layer",
            ) from error

    @untraced
    def record(self, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        """Forward hook of layers with trainable parameters: record the inputs of the call."""
        if not (self._module.hooks_enabled and torch.is_grad_enabled() and requires_grad(layer)):
            return
        first: Any = next(_outputs(output), None)
        if first is None or not first.requires_grad:
            return
        if not layer.training:
            first.register_hook(partial(self._refuse_evaluation, layer))
            return
        self._last = layer
        held = vars(layer).setdefault("activations", [])
        backward_pass = torch._C._current_graph_task_id()
        if held and self._is_repeated(layer, held, backward_pass):
            # No gradient flows into an output that checkpointing recomputes, so this hook is called only if the call
            # was not a repetition after all.
            first.register_hook(partial(self._refuse_repeated, layer))
            return
        inputs = Inputs(self._tensors(layer, _in_order(layer, given, named)))
        inputs.backward_pass = backward_pass
        held.append(inputs)
        for name, p in trainable_parameters(layer):
            if not hasattr(p, "_forward_counter"):
                raise Refused(
                    f"The parameter {name!r} of layer {self._names[id(layer)]!r} was replaced after make_private.",
                    hint="call load_state_dict without assign=True, and do not assign new parameters to layers",
                )
            p._forward_counter += 1
        computed = _computed_output(layer, first)
        computed.register_hook(partial(self._observe, layer, inputs, first.shape))  # type: ignore[no-untyped-call]

    def _tensors(self, layer: nn.Module, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
        if not all(isinstance(value, torch.Tensor) for value in inputs):
            kinds = ", ".join(sorted({type(value).__name__ for value in inputs} - {"Tensor"}))
            raise Refused(
                f"Layer {self._names[id(layer)]!r} ({type(layer).__name__}) has trained parameters of its own, and was "
                f"called with inputs that are not tensors ({kinds}). Opacus would compute gradients without them.",
                hint="pass only tensors to the layer, or move its parameters into layers such as Linear and LayerNorm",
            )
        if isinstance(layer, nn.EmbeddingBag) and (layer.include_last_offset or len(inputs) > 3 - inputs[0].dim()):
            raise Refused(
                f"Layer {self._names[id(layer)]!r} (EmbeddingBag) was called with per_sample_weights, or has "
                "include_last_offset=True. Its gradients cannot be computed for each example.",
                hint="leave out per_sample_weights and include_last_offset; or multiply the output of an Embedding by "
                "the weights, and sum over the tokens",
            )
        is_copied = self._module.force_functorch or type(layer) not in self._module.GRAD_SAMPLERS
        if is_copied and len(inputs) > 1:
            raise Refused(
                f"Layer {self._names[id(layer)]!r} ({type(layer).__name__}) has trained parameters of its own, and was "
                f"called with {len(inputs)} inputs. Opacus would compute its gradients from the first input alone.",
                hint="call the layer with one tensor, move its parameters into layers such as Linear and LayerNorm, or "
                "register its per-example gradients with opacus.grad_sample.register_grad_sampler",
            )
        return [value.detach() for value in inputs]

    def _is_repeated(self, layer: nn.Module, held: list[Inputs], backward_pass: int) -> bool:
        """Return whether a call repeats a recorded call, as torch.utils.checkpoint with use_reentrant=False does.

        A call counts as repeated if it is made during a backward pass, but the recorded call was not. Raises `Refused`
        if the call is not a repetition and ghost clipping does not allow a second call of the layer.
        """
        if backward_pass != -1 and any(inputs.backward_pass == -1 for inputs in held):
            return True
        if self._is_ghost and type(layer) in self._module.NORM_SAMPLERS:
            raise Refused(
                f"Layer {self._names[id(layer)]!r} was called a second time before the backward pass. Ghost clipping "
                "needs exactly one call.",
                hint="if the model uses the layer twice, use grad_sample_mode='hooks'; if the first call was an "
                "evaluation, run it under torch.no_grad(); if a batch was interrupted, start a new iterator of the "
                "loader",
            )
        return False

    @untraced
    def _observe(self, layer: nn.Module, inputs: Inputs, shape: torch.Size, gradient: torch.Tensor) -> None:
        """Hand the inputs of a call and the gradient of its output to Opacus."""
        held = vars(layer).get("activations", [])
        places = [place for place, other in enumerate(held) if other is inputs]
        if not places:
            raise self._unmatched(layer)
        held.append(held.pop(places[0]))  # Opacus takes the last inputs in the list
        options = {"loss_reduction": self._module.loss_reduction, "batch_first": self._module.batch_first}
        self._module.capture_backprops_hook(layer, None, (gradient.reshape(shape),), **options)

    def _unmatched(self, layer: nn.Module) -> Refused:
        return Refused(
            f"The backward pass reached layer {self._names.get(id(layer), type(layer).__name__)!r}, but no recorded "
            "forward pass of the layer matches it.",
            hint="call backward once for each forward pass, without retain_graph; run a new forward pass after "
            "load_state_dict, restart or an interrupted batch",
        )

    def _refuse_evaluation(self, layer: nn.Module, _gradient: Any = None) -> None:
        raise Refused(
            f"Layer {self._names.get(id(layer), '')!r} ({type(layer).__name__}) has trained parameters, but was in "
            "evaluation mode in the forward pass, so its gradients cannot be computed per example.",
            hint="call model.train() before the forward pass, and use torch.no_grad() to evaluate",
        )

    def _refuse_repeated(self, layer: nn.Module, _gradient: Any = None) -> None:
        raise Refused(
            f"Layer {self._names[id(layer)]!r} is used both inside and outside torch.utils.checkpoint with "
            "use_reentrant=True, so its inputs cannot be matched to its gradients.",
            hint="pass use_reentrant=False to torch.utils.checkpoint; False is the default of transformers",
        )

    def take(self, *, module: nn.Module, **given: Any) -> Any:
        """Call Opacus's `rearrange_grad_samples`, which returns the inputs and output gradients of a layer.

        Raises `Refused` if a layer was called in evaluation mode, where Opacus records no inputs and would use the
        inputs of an earlier pass. Also raises `Refused` if a layer was called with only part of the batch.

        If a layer is used several times, Opacus adds row i of each use to example i. If one use had only some of the
        examples, their gradients would be added to the wrong examples. Recurrent layers may have fewer rows: at a
        position that some sequences do not reach, they process only the longer sequences. These are the first rows of
        the batch, so row i still belongs to example i.
        """
        if not module.training:
            self._refuse_evaluation(module)
        if not vars(module).get("activations"):
            raise self._unmatched(module)
        self._check_first(module)
        self._watch_gradients()
        activations, backprops = self._rearrange(module=module, **given)
        whole: Any = module.max_batch_len
        if len(backprops) != whole and not isinstance(module, RNNLinear):
            raise _some(module, self._names.get(id(module), ""))
        self._check_rows(module, whole)
        return activations, backprops

    def _check_rows(self, layer: nn.Module, rows: int) -> None:
        """Raise `Refused` if another layer used a parameter of this layer with a different number of rows in this pass.

        Opacus would add row i of both layers, although these rows may belong to different examples.
        """
        for _, p in trainable_parameters(layer):
            if self._rows.setdefault(id(p), rows) != rows and hasattr(p, "_current_grad_sample"):
                raise Refused(
                    f"The parameter {self._parameter_names[id(p)]!r} is shared by layers that were called with "
                    "different numbers of rows, so the rows cannot be matched to examples.",
                    hint="call every layer with one row per example; if all examples share an input, expand it to the "
                    "batch: tokens.expand(examples, -1)",
                )
            self._rows[id(p)] = rows

    def _check_first(self, layer: nn.Module) -> None:
        """Raise `Refused` if the layer already has per-example gradients, of this batch or of the last batch."""
        if self._is_ghost or self._module.grad_accumulation_allowed:
            return
        for _, p in trainable_parameters(layer):
            sample = p.grad_sample
            if sample is None:
                continue
            name = self._parameter_names[id(p)]
            if getattr(sample, "_processed", False):
                raise Refused(
                    f"The gradients of the last batch were not cleared: {name!r} still has them.",
                    hint="call optimizer.zero_grad() before every backward pass",
                )
            raise Refused(
                f"backward was called a second time before optimizer.step(): {name!r} already has gradients.",
                hint="call backward once for each batch, on the sum of its losses; to split a batch, use Opacus's "
                "BatchMemoryManager; if the first pass was not meant to train, call optimizer.zero_grad() after it",
            )

    def _watch_gradients(self) -> None:
        """At the end of this backward pass, record every `p.grad` and how often it was changed in place."""
        if self._is_ghost or self._is_pass_open:
            return
        self._is_pass_open = True

        def end() -> None:
            self._is_pass_open = False
            self._versions = [gradient_version(p) for p in self._parameters]

        torch.autograd.Variable._execution_engine.queue_callback(end)

    def warn_changed(self) -> None:
        """Warn once if `p.grad` was changed since the backward pass, because the change has no effect on the step."""
        versions, self._versions = self._versions, None
        if versions is None or self._is_warned:
            return
        for p, (gradient, version) in zip(self._parameters, versions, strict=True):
            now, changes = gradient_version(p)
            if now is gradient and changes != version:
                self._is_warned = True
                warnings.warn(
                    f"The gradient of {self._parameter_names[id(p)]!r} was changed between backward and step, for "
                    "example by torch.nn.utils.clip_grad_norm_ or a gradient scaler. This has no effect: step() clips "
                    "the gradient of each example, and replaces p.grad with the noisy sum.\n\nhint: remove "
                    "clip_grad_norm_; to change noisy gradients, use attach_step_hook",
                    stacklevel=2,
                )
                return

    def reset(self) -> None:
        """Forget what was recorded about the gradients, and the last layer, of an interrupted pass."""
        self._last = self._versions = None
        self._is_pass_open = False


def _is_opacus(hook: Any, module: Any, name: str) -> bool:
    """Return whether a hook is the method `name` of Opacus's wrapper."""
    return getattr(hook, "__self__", None) is module and getattr(hook, "__name__", "") == name


def _outputs(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in the output of a layer. Opacus uses the gradient of the first tensor."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _outputs(item)


def _computed_output(layer: nn.Module, output: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the same gradient as a layer's output, even if the output is changed in place later.

    For an input with more than two dimensions, the output of a Linear is a view of a matrix product. An in-place change
    gives the view a new autograd history, but the product keeps its own history.
    """
    base = output._base
    if type(layer) is not nn.Linear or base is None or base.grad_fn is None or not base.requires_grad:
        return output
    is_reshaped = base.numel() == output.numel() and base.is_contiguous() and output.is_contiguous()
    return base if is_reshaped and base.grad_fn.name() == "AddmmBackward0" else output


def _in_order(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of a call of a layer as positional arguments, without arguments that equal the default."""
    if not named and len(given) == 1:
        return given
    signature = inspect.signature(layer.forward)
    bound = signature.bind(*given, **named)
    found = []
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            found.extend(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            found.extend(value.values())
        elif isinstance(value, torch.Tensor) or parameter.default is parameter.empty or value != parameter.default:
            found.append(value)
    return tuple(found)


def check_sequences(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Forward pre-hook of recurrent layers: raise `Refused` unless row i of the input is example i."""
    given = inputs[0] if inputs else named["input"]
    refuse_another_order(layer, given)
    refuse_some_sequences(layer, given)


def refuse_another_order(layer: nn.Module, given: Any) -> None:
    """Raise `Refused` if packing has sorted the sequences by length, so that row i is not example i in this layer.

    The norm of row i would then combine the gradients of two different examples, so neither of them would be clipped
    correctly.
    """
    order = given.sorted_indices if isinstance(given, PackedSequence) else None
    if order is not None and not torch.equal(order, torch.arange(len(order), device=order.device)):
        raise Refused(
            f"The input of {type(layer).__name__} was sorted by length, so the examples are in a different order than "
            "in the other layers.",
            hint="sort the whole batch by length before the model is called, for example in collate_fn, and pack it "
            "with enforce_sorted=True",
        )


def refuse_some_sequences(layer: nn.Module, given: Any) -> None:
    """Raise `Refused` if a recurrent layer is called with different numbers of sequences in one forward pass."""
    batch_dim = 0 if layer.batch_first else 1
    rows = int(given.batch_sizes[0]) if isinstance(given, PackedSequence) else given.shape[batch_dim]
    for cell in layer.modules():
        waiting = vars(cell).get("activations", ()) if isinstance(cell, RNNLinear) else ()
        before = max((len(held[0]) for held in waiting), default=rows)
        if before != rows:
            raise _some(layer)


def _some(layer: nn.Module, name: str = "") -> Refused:
    which = f"Layer {name!r} ({type(layer).__name__})" if name else f"A {type(layer).__name__}"
    return Refused(
        f"{which} was called with different numbers of rows in one forward pass, so the rows cannot be matched to "
        "examples.",
        hint="call the layer with all examples every time, and select from its outputs",
    )
