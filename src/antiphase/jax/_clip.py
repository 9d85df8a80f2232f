"""`clipped_sum`: clips per-example gradients and sums them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

from antiphase import _check
from antiphase._lattice import Lattice
from antiphase.jax._communication import (
    check_distributed,
    check_no_communication,
    check_whole,
    manual_axes,
    varying,
    varying_axes,
)
from antiphase.jax._example_keys import check_keys
from antiphase.jax._examples import explicit_axes, on_batch_axes, split_examples
from antiphase.jax._lattice_sum import check_not_sharded, check_x64, lattice_sum

Loss = Callable[..., Any]
SUM_BLOCK = 512  # largest number of examples in a block, whose sum is computed in float32; see `_blockwise`
SMALLEST_NORM, LARGEST_NORM = 1e-30, 1e30
SMALLEST_ENTRY, LARGEST_ENTRY = 1e-37, 1e37  # outside this range, float32 entries or their reciprocals are inexact
ROUNDING_MARGIN = 2.0**-16  # exceeds the relative rounding error of one leaf's norm, which is a few times 2^-24
ROUNDING_PER_LEAF = 2.0**-24  # twice the relative rounding error that each further leaf adds to the norm


class PerExample(NamedTuple):
    """Losses and auxiliary outputs of each example, without noise. They are secret: do not release, log or plot them.

    Attributes:
        losses: losses, one per example in the order of the batch, before clipping; 0 for padding.
        aux: auxiliary outputs of the loss, with the examples along the first axis; 0 for padding. None without has_aux.
    """

    losses: jax.Array
    aux: Any


def clipped_sum(
    loss: Loss,
    clip_norm: float,
    *,
    microbatch: int | None = None,
    has_aux: bool = False,
    return_losses: bool = False,
    batch_axis: Any = 0,
    keep_batch_axis: bool = False,
    lattice: Lattice | None = None,
) -> Callable[..., Any]:
    """Return a function that clips each example's gradient to norm `clip_norm` and sums the clipped gradients.

        sum_i mask_i g_i min(1, clip_norm / |g_i|),   g_i = gradient of loss(params, *example_i)

    The norm |g_i| is over all leaves (parameter arrays) together. To allow for rounding errors, gradients are actually
    clipped to the slightly smaller norm clip_norm * (1 - 2^-16 - 2^-24 * (number of leaves)). A gradient that is not
    finite, or has an entry above 1e37 in absolute value, counts as zero.

    The loss sees one example at a time, **without a batch axis**: for a batch of images of shape (64, 28, 28, 1), it is
    called with an image of shape (28, 28, 1). For a loss that expects a batch, set keep_batch_axis=True. The loss then
    gets batches of one example.

    **Guarantee**: each example contributes a vector of norm at most `clip_norm`, whatever its data, provided that its
    loss does not depend on other examples (no batch normalisation). Blocks of up to 512 examples are added in float32,
    and the sums of the blocks are added in twice that precision. One example can therefore change the rounding errors
    in the sum of the others by at most about clip_norm / 256, plus the rounding of the result. On a mesh, examples are
    clipped before they are summed over devices, however parameters and batch are sharded.

    Inside `jax.shard_map`, each device sums the gradients of its own examples. Call `jax.lax.psum` on the result, over
    the mesh axes of the examples and no others. Pass whole parameters (no shards). These mistakes raise `Refused`:

    - The loss communicates between devices. Gradients would depend on examples of other devices, or be summed before
      they are clipped.
    - Devices have the same examples but different parameters. Each shard of a gradient would be clipped on its own.
      With check_vma=False, this is not detected unless the loss communicates.
    - The loss depends on the device, for example because dropout has one key per device. Leaving out one example would
      move others to a different device and change their gradients. With check_vma=False, this is not always detected.
    - The batch is the same on all devices. `jax.lax.psum` would count its examples several times. With
      check_vma=False, this is not detected.

    For dropout and other randomness in the loss, pass the random keys that `antiphase.jax.batches` makes, one per
    example, as an element of the batch: `total(params, (*batch.data, batch.keys), batch.mask)`, where `total` is the
    returned function. A key belongs to an example and is secret. Other keys in the batch raise `Refused`:
    `jax.random.split` gives row i the i-th key, so leaving out one example would change the keys of all later ones. The
    sum would then change by many times `clip_norm`.

    A `lattice` is a grid on which sums and noise are exact integers (docs/lattice-noise.md). With a lattice, gradients
    are computed one at a time, clipped, truncated to the grid, and summed exactly, as int64. The integers of one
    example have a norm of at most `lattice.norm`, and depend on no other example.

    Args:
        loss: function (params, *example) -> scalar loss of one example. With has_aux, it returns (loss, aux), where aux
            is any tree of arrays.
        clip_norm: `clip_norm` of the plan's problem, between 1e-30 and 1e30.
        microbatch: number of per-example gradients in memory at once, at most 512; None for 512. It must divide the
            batch size.
        has_aux: if True, the loss returns (loss, aux).
        return_losses: if True, the losses of the examples are returned even if has_aux is False.
        batch_axis: axis of the examples in the arrays of the batch, like `in_axes` of `jax.vmap`. It is an integer, or
            a tuple with an entry (an integer, None, or a tree of them) for each element of the batch. None means that
            all examples share the array. A shared array must not depend on any example.
        keep_batch_axis: if True, the loss gets each example with a batch axis of size 1.
        lattice: `plan.mechanism.lattice`; None if the plan has no lattice. A lattice needs jax_enable_x64 and
            microbatch=None.

    Returns:
        A function (params, batch, mask) -> sum, a tree like params. `batch` is a tuple of arrays or trees with the
        examples along the first axis, or along `batch_axis`. `mask` has one entry per example and is False for padding.
        With has_aux or return_losses, the function returns (sum, PerExample(losses, aux)) instead.

    >>> total = clipped_sum(lambda w, x: w * x, clip_norm=2.0, return_losses=True)
    >>> sums, each = total(jnp.float32(1.0), (jnp.array([1.0, 5.0, 7.0]),), jnp.array([True, True, False]))
    >>> round(sums.item(), 4), each.losses.tolist()
    (3.0, [1.0, 5.0, 0.0])
    """
    hint = "use the plan's clip_norm; if it is out of the range of float32, scale the loss and plan again"
    norm = _check.real("clipped_sum", "clip_norm", clip_norm, SMALLEST_NORM, LARGEST_NORM, hint)
    size = None if microbatch is None else _check.positive_integer("clipped_sum", "microbatch", microbatch)
    if lattice is not None:
        _check_lattice(lattice, norm, size)

    def total(params: Any, batch: tuple[Any, ...], mask: Any) -> Any:
        used = _flags(mask)
        examples = split_examples(batch, batch_axis, keep_batch_axis, len(used))
        check_keys(examples.arrays)
        if size is not None and len(used) > size and len(used) % size:
            hint = "pad the batch, for example with antiphase.jax.pad"
            raise _check.invalid("clipped_sum", "microbatch", f"a divisor of the batch size, {len(used)}", size, hint)

        def example_loss(params: Any, example: list[Any]) -> tuple[jax.Array, Any]:
            found = loss(params, *examples.rebuild(example))
            return found if has_aux else (found, None)

        batch_arrays = [*examples.arrays, used]
        if lattice is not None:
            check_not_sharded(manual_axes(), explicit_axes(batch_arrays)[0])
            sums, losses, aux = lattice_sum(example_loss, lattice, params, examples.arrays, used)
            return (sums, PerExample(losses, aux)) if has_aux or return_losses else sums

        if manual_axes() and len(used):
            check_distributed(varying(batch_arrays))
            check_whole(varying(params), varying(batch_arrays))
            check_no_communication(lambda *given: _gradients(example_loss, *given), params, examples.arrays)

        def sum_of(params: Any, arrays: list[Any], used: jax.Array) -> tuple[Any, PerExample]:
            return _blockwise(params, arrays, used, size, lambda *block: _block_sum(example_loss, norm, *block))

        sums, each = on_batch_axes(sum_of, params, examples.arrays, used)
        return (sums, each) if has_aux or return_losses else sums

    return total


def _block_sum(
    loss: Callable[..., Any], norm: float, params: Any, arrays: list[Any], used: jax.Array
) -> tuple[Any, PerExample]:
    """Return the sum of the clipped gradients of a block, added in no fixed order, and each example's loss and aux."""
    (losses, aux), gradients = _gradients(loss, _on_each_device(params, used), arrays)
    clipped = jax.vmap(lambda g, used: _clipped(g, used, norm))(gradients, used)

    def without_padding(values: Any) -> jax.Array:
        return jnp.where(used.reshape(-1, *[1] * (jnp.ndim(values) - 1)), values, jnp.zeros_like(values))

    return jax.tree.map(lambda g: g.sum(0), clipped), jax.tree.map(without_padding, PerExample(losses, aux))


def _gradients(loss: Callable[..., Any], params: Any, arrays: list[Any]) -> Any:
    """Return ((losses, aux), gradients) of a block of examples, before clipping."""
    whole = _on_each_device(params, arrays)
    return jax.vmap(jax.value_and_grad(loss, has_aux=True), (None, 0))(whole, arrays)


def _blockwise(
    params: Any, arrays: list[Any], used: jax.Array, size: int | None, block_sum: Callable[..., Any]
) -> tuple[Any, PerExample]:
    """Return the sum of the clipped gradients, computed in blocks, and each example's loss and aux.

    In a plain float32 sum of thousands of gradients, one gradient can change how all later additions are rounded. It
    can thus change the sum by twice its own norm (Casacuberta et al. 2022). In a block of n examples, one example can
    change the rounding of the block's sum by at most about n^2 / 4 * 2^-24 * clip_norm. The same bound is used in
    `antiphase.torch`. The sums of the blocks are added in twice the precision: the rounding error of each addition is
    kept in a second number.

    Each block takes evenly spaced examples from the whole batch, so on a mesh every device has a part of each block.
    """
    examples = len(used)
    limit = SUM_BLOCK if size is None else min(size, SUM_BLOCK)
    blocks = -(-examples // limit)
    if blocks <= 1:
        return block_sum(params, arrays, used) if blocks else _of_nobody(params, arrays, used, block_sum)
    rows = -(-examples // blocks)

    def cut(array: jax.Array) -> jax.Array:
        missing = rows * blocks - examples  # number of padding rows, for which `used` is False; fewer than `blocks`
        if not missing:
            padded = array
        elif jnp.issubdtype(array.dtype, jax.dtypes.prng_key):  # there is no zero key to pad with
            padded = jnp.concatenate([array, array[:missing]])
        else:
            padded = jnp.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
        return padded.reshape(rows, blocks, *array.shape[1:]).swapaxes(0, 1)

    params = _on_each_device(params, (arrays, used))
    zero = jax.tree.map(lambda p: jnp.zeros_like(p, wide_dtype(p)), params)

    def add(sums: tuple[Any, Any], block: Any) -> tuple[tuple[Any, Any], PerExample]:
        found, each = block_sum(params, *block)
        leaves, tree = jax.tree.flatten(found)
        high, low = map(jax.tree.leaves, sums)
        added = [_two_sum(a, b) for a, b in zip(high, leaves, strict=True)]
        kept = [a + error for a, (_, error) in zip(low, added, strict=True)]
        return (jax.tree.unflatten(tree, [s for s, _ in added]), jax.tree.unflatten(tree, kept)), each

    (high, low), each = jax.lax.scan(add, (zero, zero), jax.tree.map(cut, (arrays, used)))
    in_order = jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:])[:examples], each)
    return jax.tree.map(jnp.add, high, low), in_order


def _two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the rounded sum fl(a + b) and its exact error (Knuth).

    The error is exact because XLA does not reorder floating-point operations.
    """
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _of_nobody(params: Any, arrays: list[Any], used: jax.Array, block_sum: Callable[..., Any]) -> Any:
    """Return the result for an empty batch: sums of zero, and empty arrays of losses and auxiliary outputs."""
    one = jax.tree.map(lambda x: jnp.zeros((1, *x.shape[1:]), x.dtype), (arrays, used))
    _, each = jax.eval_shape(block_sum, params, *one)
    sums = jax.tree.map(lambda p: jnp.zeros_like(p, wide_dtype(p)), params)
    return sums, jax.tree.map(lambda x: jnp.zeros((0, *x.shape[1:]), x.dtype), each)


def _clipped(gradient: Any, used: jax.Array, norm: float) -> Any:
    """Return one example's gradient, clipped to norm at most `norm`; zero for padding and non-finite gradients.

    The gradient is divided by its largest entry before its norm is computed. Otherwise squares of small entries would
    underflow, and the norm would be too small.
    """
    wide = jax.tree.map(lambda g: g.astype(wide_dtype(g)), gradient)
    largest = jnp.stack([jnp.abs(g).max(initial=0) for g in jax.tree.leaves(wide)]).max()
    counts = used & (largest <= LARGEST_ENTRY)  # also False for NaN
    scaled = jax.tree.map(lambda g: g / jnp.where(counts & (largest >= SMALLEST_ENTRY), largest, 1), wide)
    scaled_norm = optax.tree.norm(scaled)
    margin = ROUNDING_MARGIN + ROUNDING_PER_LEAF * len(jax.tree.leaves(wide))
    allowed = norm * (1 - margin) / jnp.maximum(scaled_norm, 1)

    def clip(g: jax.Array, s: jax.Array) -> jax.Array:
        kept = jnp.where(largest <= allowed, g, s * allowed)
        return jnp.where(counts & jnp.isfinite(scaled_norm), kept, 0).astype(g.dtype)

    return jax.tree.map(clip, wide, scaled)


def _on_each_device(params: Any, batch: Any) -> Any:
    """Inside `jax.shard_map`, mark parameters as different on every device that has its own examples.

    In JAX, the derivative with respect to a value that is the same on all devices is a sum over the devices. Without
    the mark, the gradients of examples on different devices would be added before they are clipped.
    """
    axes = varying(batch)

    def cast(p: Any) -> Any:
        missing = tuple(axes - varying_axes(p))
        return jax.lax.pcast(p, missing, to="varying") if missing else p

    return jax.tree.map(cast, params)


def _check_lattice(lattice: Any, clip_norm: float, microbatch: int | None) -> None:
    """Raise an error if no sum can be computed on this lattice, or if `clip_norm` is not its clipping norm."""
    if not isinstance(lattice, Lattice):
        hint = "pass plan.mechanism.lattice"
        raise _check.invalid("clipped_sum", "lattice", "a Lattice or None", type(lattice).__name__, hint)
    # The clipping norm of the lattice is the plan's clipping norm, rounded down to the grid.
    if not lattice.clip_norm <= clip_norm < lattice.clip_norm + lattice.grid:
        hint = "pass clip_norm and lattice of the same plan"
        must = f"the lattice's clipping norm, {lattice.clip_norm}"
        raise _check.invalid("clipped_sum", "clip_norm", must, clip_norm, hint)
    if microbatch is not None:
        hint = "omit it: with a lattice, gradients are computed one at a time"
        raise _check.invalid("clipped_sum", "microbatch", "None with a lattice", microbatch, hint)
    check_x64()


def _flags(mask: Any) -> jax.Array:
    used = jnp.asarray(mask, bool)
    if used.ndim != 1:
        raise _check.invalid(
            "clipped_sum",
            "mask",
            "a vector with one flag per example",
            f"shape {used.shape}",
            "use the mask from batches",
        )
    return used


def wide_dtype(array: Any) -> Any:
    """Return the array's dtype, or float32 if that dtype is narrower. Half precision would round examples away."""
    return jnp.promote_types(jnp.result_type(array), jnp.float32)
