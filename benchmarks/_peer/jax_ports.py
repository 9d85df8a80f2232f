"""Trains with jax_privacy on stored arrays, and prints the final losses as JSON.

Arguments: the kind of model (logistic, line or transformer), a file of arrays, the number of trainings, and settings as
name=value.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import batch_selection
from jax_privacy.experimental import execution_plan

KIND, FILE, REPEATS = sys.argv[1], sys.argv[2], int(sys.argv[3])
SETTINGS = {name: float(value) for name, value in (argument.split("=") for argument in sys.argv[4:])}
ARRAYS = dict(np.load(FILE))
HEADS = 4


def logistic(params, x, y):
    logits = x @ params["weights"] + params["bias"]
    return -jax.nn.log_sigmoid(jnp.where(y, logits, -logits)).mean()


def line(params, x, y):
    return jnp.mean((params["w"] * x + params["b"] - y) ** 2)


def layer_norm(x, params):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return params["scale"] * (x - mean) / jnp.sqrt(var + 1e-5) + params["bias"]


def block(params, x):
    heads = [(x @ params["attn"][name]).reshape(*x.shape[:2], HEADS, x.shape[-1] // HEADS) for name in ("q", "k", "v")]
    x = layer_norm(
        x + jax.nn.dot_product_attention(*heads, is_causal=True).reshape(x.shape) @ params["attn"]["proj"],
        params["ln1"],
    )
    return layer_norm(x + jax.nn.gelu(x @ params["mlp"]["fc1"]) @ params["mlp"]["fc2"], params["ln2"])


def transformer(params, x, y):
    hidden = params["embedding"][x] + params["pos_embedding"][: x.shape[1]]
    for part in params["layers"]:
        hidden = block(part, hidden)
    logits = layer_norm(hidden, params["ln_f"]) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def transformer_params():
    names = {"attn": ["k", "proj", "q", "v"], "ln1": ["bias", "scale"], "ln2": ["bias", "scale"], "mlp": ["fc1", "fc2"]}
    layer = {part: dict.fromkeys(keys, 0) for part, keys in names.items()}
    like = {
        "embedding": 0,
        "head": 0,
        "layers": [layer] * int(SETTINGS["layers"]),
        "ln_f": {"bias": 0, "scale": 0},
        "pos_embedding": 0,
    }
    leaves = [jnp.asarray(ARRAYS[f"param{i}"]) for i in range(len(jax.tree.leaves(like)))]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def problem():
    """Return the loss, the initial parameters, the data and the data of the final loss."""
    if KIND == "transformer":
        text, test = ARRAYS["text"], ARRAYS["test"]
        data, held_out = (text[:, :-1], text[:, 1:]), (test[:, :-1], test[:, 1:])
        return transformer, transformer_params(), data, held_out
    data = (ARRAYS["x"], ARRAYS["y"])
    if KIND == "line":
        return line, {"w": jnp.float32(-0.5), "b": jnp.float32(0.3)}, data, data
    return logistic, {"weights": jnp.zeros(data[0].shape[1]), "bias": jnp.zeros(())}, data, data


def train(seed):
    loss, params, data, held_out = problem()
    examples, batch, bands = len(data[0]), int(SETTINGS["batch_size"]), int(SETTINGS["bands"])
    plan = execution_plan.BandMFExecutionPlanConfig.default(
        num_bands=bands,
        iterations=int(SETTINGS["iterations"]),
        epsilon=SETTINGS["epsilon"],
        delta=SETTINGS["delta"],
        sampling_prob=batch * bands / examples,
        l2_clip_norm=1.0,
        normalize_by=batch,
        noise_seed=seed,
    ).plan
    gradient, optimizer = plan.clipped_grad(loss, batch_argnums=(1, 2)), optax.sgd(SETTINGS["learning_rate"])

    @jax.jit
    def step(params, x, y, padding, noise_state, state):
        noisy, noise_state = plan.noise_addition_transform.update(
            gradient(params, x, y, is_padding_example=padding), noise_state
        )
        updates, state = optimizer.update(noisy, state)
        return optax.apply_updates(params, updates), noise_state, state

    noise_state, state = plan.noise_addition_transform.init(params), optimizer.init(params)
    for indices in plan.batch_selection_strategy.batch_iterator(examples, rng=seed):
        padded = batch_selection.pad_to_multiple_of(indices, 32)
        x, y = (array[padded] for array in data)
        params, noise_state, state = step(params, x, y, padded == -1, noise_state, state)
    return float(jax.jit(loss)(params, *held_out))


print(json.dumps([train(seed) for seed in range(REPEATS)]))
