"""`make_private`: train a Keras 3 model privately with `model.fit`, on the JAX backend.

`import antiphase.jax` does not load Keras. Use `import antiphase.jax.keras`, with KERAS_BACKEND=jax.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

try:
    import keras
except ImportError as error:
    raise ImportError("antiphase.jax.keras needs Keras 3.\n\nhint: pip install antiphase[keras]") from error

from antiphase._check import invalid, positive_integer
from antiphase._errors import InvalidArgument, Refused
from antiphase._plan import Plan, require_plan
from antiphase._run import PrivacyReport, Run
from antiphase._secret import Secret
from antiphase._traceback import without_locals
from antiphase.jax._batches import batches
from antiphase.jax._checkpoint import load, save
from antiphase.jax._clip import clipped_sum
from antiphase.jax._commit import commit, is_replay, report
from antiphase.jax._leaves import leaves
from antiphase.jax._transformation import add_correlated_noise

__all__ = ["PrivateModel", "make_private"]

SEED = "seed_generator_state"  # name of the variables of keras.random.SeedGenerator
CHECKPOINT = "keras-checkpoint"
STEP_MODULUS = 2**24  # float32 represents all smaller integers exactly
REPLACED = ("fit", "make_train_function", "train_on_batch")
KERAS_STATE = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")


def make_private(
    model: Any,
    plan: Plan,
    run_directory: str | Path,
    *,
    examples: int,
    source: Literal["host", "device"] = "host",
    microbatch: int | None = None,
    padding_multiple: int = 64,
    training_metrics: bool = False,
    secret: Secret | None = None,
) -> PrivateModel:
    """Make a compiled Keras model train privately with a plan.

    ```python
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    with make_private(model, plan, "run", examples=len(x)) as private:
        model.fit(x, y, epochs=10, validation_data=(x_test, y_test))
        private.run.publish("the model")
        print(private.report())
    ```

    The model is changed in place. Until you close the returned object, `model.fit` takes all batches from the run.
    Every batch is one step: each example's gradient is clipped, the clipped gradients are summed, and the step's noise
    is added to the sum. The noisy sum is divided by the expected batch size and passed to the Keras optimizer. Then the
    step is committed to the run's ledger. Noise is added even if a batch is empty.

    `fit` writes an encrypted checkpoint to the run directory at the start and after every epoch. If the program was
    killed, run it again: `fit` continues after the last epoch in the checkpoint. It replays the steps that were
    committed after the checkpoint, with the same noise.

    Raises `Refused` for anything that would void the guarantee: layers that update variables from the data, such as
    `BatchNormalization`; a custom `train_step`; gradient accumulation and loss scaling in the optimizer; several steps
    per execution; batches that the run did not draw.

    **Guarantee**: the plan's guarantee holds for the variables of the model and its optimizer. Losses and metrics of
    the training examples have no noise, so by default `fit` does not compute them. Metrics of `validation_data` are
    computed as usual, without noise. The guarantee covers these metrics only if the validation data contain no training
    examples, and it never protects the validation data themselves. Validation arrays that share memory with the
    training examples raise `Refused`, but copies of training examples cannot be detected. It cannot be detected either
    if layers such as `Normalization` were adapted to the training examples before. Adapt such layers to public data.

    Args:
        model: a keras.Model, compiled, with the JAX backend.
        plan: plan to train with.
        run_directory: run directory. It holds the secret, the noise state and the checkpoint; do not store it with the
            model.
        examples: number of training examples.
        source: source of the noise, as for `add_correlated_noise`.
        microbatch: number of per-example gradients that are in memory at once, as for `clipped_sum`. It must divide
            `padding_multiple`.
        padding_multiple: batches are padded to a multiple of this number, so that JAX compiles for few shapes.
        training_metrics: if True, `fit` reports the loss and the metrics of the training examples, which have no noise.
            Do not publish them, and do not use callbacks that depend on them.
        secret: secret that all noise is derived from. If None, a secret is generated and stored in the run directory.
    """
    require_plan("make_private", plan)
    _check_model(model)
    size = positive_integer("make_private", "padding_multiple", padding_multiple)
    if microbatch is not None and size % positive_integer("make_private", "microbatch", microbatch):
        hint = "use a power of two for both"
        raise invalid("make_private", "microbatch", f"a divisor of padding_multiple, {size}", microbatch, hint)
    return PrivateModel(model, plan, Path(run_directory), examples, source, microbatch, size, training_metrics, secret)


@final
class PrivateModel:
    """A model that trains privately, returned by `make_private`. Use it as a context manager, or call `close`.

    Attributes:
        model: the Keras model.
        run: the open run. It is None before the first call of `fit`, which opens it, and after `close`.
    """

    def __init__(
        self,
        model: Any,
        plan: Plan,
        directory: Path,
        examples: int,
        source: Literal["host", "device"],
        microbatch: int | None,
        padding_multiple: int,
        training_metrics: bool,
        secret: Secret | None,
    ) -> None:
        if plan.mechanism.lattice is not None:
            raise Refused(
                "The Keras integration adds noise in floating point, but the plan has a lattice.",
                hint="plan without lattice=True, or write the training loop with antiphase.jax",
            )
        self.model = model
        self.run: Run | None = None
        self._closed = False
        self._plan, self._directory, self._secret, self._source = plan, directory, secret, source
        self._examples = positive_integer("make_private", "examples", examples)
        self._microbatch, self._multiple, self._metrics = microbatch, padding_multiple, training_metrics
        participation = plan.mechanism.participation
        self._batch_size = plan.problem.batch_size or participation.expected_batch(self._examples, plan.steps)
        self._noise: Any = None
        self._state: Any = None  # noise state
        self._drawn: deque[tuple[int, NDArray[np.int64], jax.Array]] = (
            deque()
        )  # step, indices and keys of the batches that Keras has fetched, but not trained on yet
        self._committed_before = 0  # number of steps that were committed when the checkpoint was loaded
        self._expected = b""  # digest of the training state that the next step starts from, if it is such a step
        self._keras_fit = model.fit
        if any(name in vars(model) for name in REPLACED):
            raise Refused(
                "The model is already private, or its methods were replaced.",
                hint="close the object that make_private returned, or make a new model",
            )
        model.fit, model.make_train_function, model.train_on_batch = self.fit, self._set_train_function, _refuse_batch

    def report(self) -> PrivacyReport:
        """Return the privacy report of the steps so far."""
        if self.run is None or self._state is None:
            raise Refused("The model has not been trained in this process.", hint="call model.fit first")
        return report(self.run, (self._state,))

    def close(self) -> None:
        """Close the run, and restore the model's original methods."""
        for name in REPLACED:
            vars(self.model).pop(name, None)
        self.model.train_function, self._closed = None, True
        if self.run is not None:
            self.run.close()
            self.run = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        *,
        sample_weight: Any = None,
        steps_per_epoch: int | None = None,
        **options: Any,
    ) -> Any:
        """Train for some epochs, as keras.Model.fit does, on batches of the run.

        An epoch has `steps_per_epoch` steps. By default, an example takes part about once per epoch. To resume a run,
        run the same program again: the first call of `fit` continues after the epochs in the checkpoint.

        Args:
            x: an array, or a list or dict of arrays, with one row per example.
            y: targets, with one row per example.
            batch_size: None, or the expected batch size of the plan.
            epochs: number of epochs. The plan must have enough steps for all epochs.
            verbose: as for keras.Model.fit.
            callbacks: as for keras.Model.fit.
            sample_weight: one weight per example, which multiplies its loss before the gradient is clipped.
            steps_per_epoch: number of steps per epoch.
            options: validation_data, validation_freq, validation_steps and validation_batch_size.
        """
        if self._closed:
            raise Refused(
                "fit was called after the object from make_private was closed, so the model would train without noise.",
                hint="call make_private again; the run continues from its checkpoint",
            )
        _check_fit_options(options)
        if batch_size not in (None, self._batch_size):
            hint = "leave batch_size out: the run draws the batches"
            raise invalid("fit", "batch_size", f"the plan's batch size, {self._batch_size}", batch_size, hint)
        data = _checked_data(x, y, sample_weight, self._examples)
        if not self._metrics:
            _check_held_out(x, options.get("validation_data"))
        self._build(data)
        run = self._open_run()
        length = steps_per_epoch or max(1, round(self._examples / self._batch_size))
        first_epoch = self._restore(run, length)
        step = int(self._state.step)
        if first_epoch >= epochs:
            return keras.callbacks.History()
        needed = (epochs - first_epoch) * length
        if step + needed > run.steps:
            raise Refused(
                f"The plan has {run.steps} steps, of which {step} are done. The remaining steps are too few for "
                f"{epochs - first_epoch} epochs of {length} steps.",
                hint="train for fewer epochs, set steps_per_epoch, or make a plan with more steps",
            )
        self._drawn.clear()
        listed = _listed(callbacks)
        _restore_swaps(listed, first_epoch)
        # Save again at the end of training, because Keras may have replaced the weights by their moving average. The
        # saver comes last, after callbacks that change the weights.
        saving = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: self._save(self._state), on_train_end=lambda logs: self._save(self._state)
        )
        return self._keras_fit(
            self._batches(run, data, step),
            epochs=epochs,
            initial_epoch=first_epoch,
            steps_per_epoch=length,
            verbose=verbose,
            callbacks=[*listed, saving],
            shuffle=False,
            **options,
        )

    def _batches(self, run: Run, data: tuple[Any, Any, Any], start: int) -> Iterator[Any]:
        for batch in batches(run, data, multiple=self._multiple, start=start):
            x, y, weight = batch.data
            self._drawn.append((batch.step, batch.indices, batch.keys))
            marked = np.full(len(weight), batch.step % STEP_MODULUS)
            yield x, y, np.stack([batch.mask, weight, marked], axis=1).astype(np.float32)

    def _build(self, data: tuple[Any, Any, Any]) -> None:
        """Build the model, its losses, metrics and optimizer, for the shapes of the data."""
        x, y, _ = jax.tree.map(lambda array: array[:1], data)
        self.model._symbolic_build(data_batch=(x, y))
        _check_model(self.model)

    def _open_run(self) -> Run:
        if self.run is None:
            named = leaves(self._values("trainable_variables"))
            run = Run.open(
                self._plan,
                self._directory,
                leaves=named,
                examples=self._examples,
                secret=self._secret,
                background_noise=self._source == "host",
            )
            try:
                self._noise = add_correlated_noise(run, self._source)
            except BaseException:
                run.close()
                raise
            self.run = run
        return self.run

    def _restore(self, run: Run, length: int) -> int:
        """Restore the checkpoint, if there is one, and return its number of epochs. After the first call, return 0."""
        if self._state is not None:
            return 0
        state = self._noise.init(self._values("trainable_variables"))
        if not self._checkpoint.exists():
            if run.committed:
                raise Refused(
                    f"The run has {run.committed} committed steps, but its checkpoint is missing.",
                    hint="restore the run directory from a copy, or start a new run and compose the guarantees of both "
                    "runs",
                )
            self._save(state)
            self._state = state
            return 0
        values, state = load(self._checkpoint, (self._everything(), state), run)
        for variable, value in zip(self._variables(), values, strict=True):
            variable.assign(value)
        if int(state.step) < run.committed:
            self._committed_before, self._expected = run.committed, _digest_of(values)
        self._state = state  # last, so that an interrupted restore is repeated
        done, rest = divmod(int(self._state.step), length)
        if rest:
            raise InvalidArgument(
                f"The checkpoint is at step {int(self._state.step)}, but an epoch has {length} steps.",
                hint="pass the steps_per_epoch that the run was started with; if training was stopped within an epoch, "
                "pass a divisor of the step of the checkpoint",
            )
        return done

    @property
    def _checkpoint(self) -> Path:
        return self._directory / "private" / CHECKPOINT

    @without_locals
    def _save(self, state: Any) -> None:
        """Write the checkpoint, except while steps are replayed.

        A callback may have loaded weights that contain noise of a step that is still to be replayed. A checkpoint with
        such weights would replay the step without an error. The checkpoint that was loaded stays valid until then.
        """
        if int(state.step) < self._committed_before:
            return
        save(self._checkpoint, (self._everything(), state), self._open_run())

    def _variables(self) -> list[Any]:
        model = self.model
        return [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]

    def _everything(self) -> list[Any]:
        return [variable.value for variable in self._variables()]

    def _values(self, name: str) -> list[Any]:
        return [variable.value for variable in getattr(self.model, name)]

    def _undo(self, state: Any) -> None:
        """Assign the state from before a step to the variables. During a step, Keras leaves them without values."""
        variables = [*self._variables(), *self.model.metrics_variables]
        for variable, value in zip(variables, chain(*state), strict=True):
            variable.assign(value)
        self.model._jax_state_synced = True  # otherwise, Keras assigns the state after the last step

    def _set_train_function(self, force: bool = False) -> None:
        """Set a train function that takes and commits one step per call. Replaces keras.Model.make_train_function."""
        _check_model(self.model)
        compiled = self._compiled_step()
        run, batch_drawn = self._open_run(), self._drawn

        @without_locals
        def train_function(state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
            before = self._state, self._expected
            try:
                data = next(iterator)
                indices, keys = _drawn_for(data, batch_drawn)
                logs, after, noise_state = compiled(state, self._state, data, keys)
                trainable, non_trainable, optimizer, _ = after
                committed = (noise_state, list(optimizer), list(non_trainable)), list(trainable)
                is_old = int(self._state.step) < self._committed_before
                if is_old and _digest_of(chain(*state[:3])) != self._expected and not is_replay(run, *committed):
                    raise _changed(int(self._state.step))
                commit(run, *committed, indices)
                expected = _digest_of(chain(*after[:3])) if is_old else b""
                # If an interrupt comes before Keras stores the state, Keras assigns this one.
                self.model._jax_state = dict(zip(KERAS_STATE, after, strict=True))
                self._state, self._expected = noise_state, expected
            except BaseException:
                self._state, self._expected = before
                self._undo(state)  # the next call of `fit` takes the step again
                raise
            return logs, after

        self.model.train_function = train_function

    def _compiled_step(self) -> Callable[..., Any]:
        step = self._step_function()
        return step if self.model.run_eagerly or not self.model.jit_compile else jax.jit(step)

    def _step_function(self) -> Callable[..., Any]:
        model, clip_norm = self.model, self._plan.problem.clip_norm
        seeds = [variable.path.split("/")[-1] == SEED for variable in model.non_trainable_variables]
        paths = [variable.path for variable in model.non_trainable_variables]

        def step(state: Any, noise_state: Any, data: Any, keys: jax.Array) -> tuple[Any, Any, Any]:
            trainable, non_trainable, optimizer, metrics = state
            x, y, packed = data
            used, weight = packed[:, 0] > 0, packed[:, 1]

            def loss(trainable: Any, x: Any, y: Any, weight: Any, key: Any) -> tuple[Any, Any]:
                given = [
                    _seed_of(key[0], number, value.dtype) if is_seed else value
                    for number, (value, is_seed) in enumerate(zip(non_trainable, seeds, strict=True))
                ]
                value, (_, predicted, after, _) = model.compute_loss_and_updates(
                    trainable, given, metrics, x, y, weight, training=True, optimizer_variables=optimizer
                )
                _check_not_updated(paths, seeds, given, after)
                return value, jax.tree.map(lambda array: array[0], predicted)

            total = clipped_sum(loss, clip_norm, microbatch=self._microbatch, has_aux=True, keep_batch_axis=True)
            sums, each = total(list(trainable), (x, y, weight, keys), used)
            noisy, noise_state = self._noise.update(sums, noise_state)
            grads = [(g / self._batch_size).astype(p.dtype) for g, p in zip(noisy, trainable, strict=True)]
            trainable, optimizer = model.optimizer.stateless_apply(optimizer, grads, trainable)
            logs: Any = {}
            if self._metrics:
                mean = each.losses.sum() / jnp.maximum(used.sum(), 1)
                logs, metrics = model._update_metrics_variables(metrics, mean, x, y, each.aux, used * weight)
            return logs, (trainable, non_trainable, optimizer, metrics), noise_state

        return step


def _drawn_for(data: Any, drawn: deque[tuple[int, NDArray[np.int64], jax.Array]]) -> tuple[Any, jax.Array]:
    """Return the indices and keys of the batch that Keras passes to a step.

    Raises `Refused` if Keras passes a different batch than the run drew for the step. This happens if a callback calls
    `fit`. It also happens if a callback raises StopIteration, because Keras then starts again with the first batches.
    """
    marked = int(np.asarray(data[2])[0, 2])
    if not drawn or drawn[0][0] % STEP_MODULUS != marked:
        raise Refused(
            "Keras passed a different batch to the step than the run drew for it.",
            hint="do not call fit or raise StopIteration in callbacks; to stop, set model.stop_training = True",
        )
    _, indices, keys = drawn.popleft()
    return indices, keys


def _digest_of(arrays: Iterable[Any]) -> bytes:
    """Return a digest of the bits of arrays. The arrays cannot be kept, because `model.evaluate` donates them."""
    made = hashlib.sha256()
    for array in arrays:
        made.update(np.asarray(array).tobytes())
    return made.digest()


def _changed(step: int) -> Refused:
    return Refused(
        f"Step {step} was committed before the run was resumed. It is now replayed with its old noise, but a callback "
        "changed the weights or the optimizer's variables, which may already contain this noise.",
        hint="remove callbacks that load weights, such as BackupAndRestore (fit resumes by itself), and let other "
        "callbacks change the variables as before; then close this object and call make_private again",
    )


def _restore_swaps(callbacks: Sequence[Any], epoch: int) -> None:
    """Tell SwapEMAWeights callbacks that a checkpoint after an epoch has moving averages in place of the weights."""
    for callback in callbacks:
        if epoch and isinstance(callback, keras.callbacks.SwapEMAWeights) and callback.swap_on_epoch:
            callback._ema_weights_in_model = True


def _seed_of(key: jax.Array, number: int, dtype: Any) -> jax.Array:
    """Return the state of a seed generator for one example in one step.

    The generator's own state in the model is not used, because it is published with the model.

    Args:
        key: key of the example, from the run's secret.
        number: index of the generator's variable. It makes the random numbers of different layers independent.
        dtype: dtype of the state.
    """
    return jax.random.bits(jax.random.fold_in(key, number), (2,), jnp.uint32).astype(dtype)


def _check_not_updated(paths: list[str], seeds: list[bool], before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raise `Refused` if the forward pass updates a variable: it would store statistics of the data without noise."""
    for path, is_seed, old, new in zip(paths, seeds, before, after, strict=True):
        if new is not old and not is_seed:
            raise Refused(
                f"The model updates the variable {path} from training examples in every forward pass, without adding "
                "noise.",
                hint="replace BatchNormalization by GroupNormalization or LayerNormalization, and remove other layers "
                "that keep statistics of the data",
            )


def _check_model(model: Any) -> None:
    if keras.config.backend() != "jax":
        raise InvalidArgument(
            f"Keras uses the backend {keras.config.backend()}. antiphase.jax.keras needs the JAX backend.",
            hint="set the environment variable KERAS_BACKEND=jax before Keras is imported",
        )
    if not isinstance(model, keras.Model):
        raise invalid("make_private", "model", "a keras.Model", type(model).__name__, "pass the model itself")
    if not model.compiled:
        raise InvalidArgument("The model is not compiled.", hint="call model.compile(optimizer=..., loss=...) first")
    if type(model).train_step is not keras.Model.train_step or "train_step" in vars(model):
        raise Refused(
            f"{type(model).__name__} has a custom train_step, which would not clip gradients or add noise.",
            hint="override compute_loss instead, or write the training loop with antiphase.jax",
        )
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            raise Refused(
                f"The layer {layer.name} normalises over the batch, so each gradient depends on several examples.",
                hint="use GroupNormalization or LayerNormalization, or freeze the layer with layer.trainable = False",
            )
    _check_compiled(model)


def _check_compiled(model: Any) -> None:
    optimizer = model.optimizer
    if getattr(optimizer, "gradient_accumulation_steps", None):
        raise Refused(
            "The optimizer accumulates gradients over several batches, but every batch must be a step with its own "
            "noise.",
            hint="make a plan with the larger batch size, and set microbatch to limit memory",
        )
    is_scaling = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if is_scaling or getattr(optimizer, "loss_scale_factor", None):
        raise Refused(
            "The optimizer scales the loss, so gradients would be clipped after scaling.",
            hint="use the dtype policy mixed_bfloat16, which needs no loss scaling, or float32",
        )
    if model.steps_per_execution != 1:
        raise Refused(
            f"The model was compiled with steps_per_execution={model.steps_per_execution}, but every step must be "
            "committed before the next one.",
            hint="compile with steps_per_execution=1",
        )
    if keras.distribution.distribution() is not None:
        raise Refused(
            "A keras.distribution is set, which antiphase.jax.keras does not support.",
            hint="train on one device, or write the training loop with antiphase.jax, which supports meshes",
        )


def _check_fit_options(options: dict[str, Any]) -> None:
    allowed = {"validation_data", "validation_freq", "validation_steps", "validation_batch_size"}
    reasons = {
        "validation_split": "pass validation_data: the run trains on all examples passed to fit",
        "class_weight": "pass sample_weight instead",
        "shuffle": "leave shuffle out: the run draws the batches",
        "initial_epoch": "leave initial_epoch out: the run records how many steps are done",
    }
    for name, value in options.items():
        if name in reasons and value:
            raise Refused(f"A private model cannot be trained with {name}={value!r}.", hint=reasons[name])
        if name not in allowed and name not in reasons:
            raise invalid("fit", name, "an argument of keras.Model.fit", value, "see keras.Model.fit")
    for name in reasons:
        options.pop(name, None)


def _checked_data(x: Any, y: Any, sample_weight: Any, examples: int) -> tuple[Any, Any, Any]:
    for name, tree in (("x", x), ("y", y)):
        arrays = jax.tree.leaves(tree) if isinstance(tree, (dict, list, tuple)) else [tree]
        if not arrays or not all(hasattr(array, "shape") and hasattr(array, "dtype") for array in arrays):
            hint = "generators and data sets draw their own batches; pass arrays, such as NumPy memory maps"
            raise invalid("fit", name, "an array, or a list or dict of arrays", type(tree).__name__, hint)
        for array in arrays:
            if not array.shape or array.shape[0] != examples:
                hint = "pass make_private the number of training examples"
                raise invalid("fit", name, f"arrays of {examples} examples", f"shape {array.shape}", hint)
    weight = np.ones(examples, np.float32) if sample_weight is None else np.asarray(sample_weight, np.float32)
    if weight.shape != (examples,):
        hint = "weights per token or output are not supported"
        raise invalid("fit", "sample_weight", f"one weight for each of the {examples} examples", weight.shape, hint)
    return x, y, weight


def _check_held_out(x: Any, validation_data: Any) -> None:
    """Raise `Refused` if validation data share memory with training examples, because metrics have no noise."""
    if not isinstance(validation_data, (tuple, list)):
        return
    for held_out in jax.tree.leaves(validation_data[:1]):
        if any(_is_shared(held_out, array) for array in jax.tree.leaves(x)):
            raise Refused(
                "The validation data share memory with the training examples, whose metrics have no noise.",
                hint="pass examples that are not trained on; or pass make_private(..., training_metrics=True), and do "
                "not publish the metrics or use callbacks that depend on them",
            )


def _is_shared(one: Any, other: Any) -> bool:
    """Return whether two arrays are the same, or share memory on the host."""
    both = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    return one is other or (both and np.shares_memory(one, other))


def _refuse_batch(*_: Any, **__: Any) -> None:
    raise Refused("train_on_batch would use batches that the run did not draw.", hint="call model.fit")


def _listed(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
