"""jax_privacy's examples/dp_sgd_transformer.py with Antiphase: a transformer that predicts the next character.

    python examples/jax_privacy/dp_sgd_transformer.py --directory /tmp/transformer

Lines that change from jax_privacy to Antiphase end in "# Antiphase". The text is generated from a Markov chain over
characters, so the example needs no download; the generated sample of text at the end is left out.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import antiphase as ap  # Antiphase
import antiphase.jax as apj  # Antiphase

HEADS, CLIPPING_NORM, DELTA, PADDING_MULTIPLE = 4, 1.0, 1e-5, 32


def init_model_params(vocabulary, width, layers, length, seed=42):
    keys = iter(jax.random.split(jax.random.key(seed), 3 + 6 * layers))

    def matrix(*shape):
        return jax.random.normal(next(keys), shape) * 0.1

    def norm():
        return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

    blocks = [
        {
            "attn": {name: matrix(width, width) for name in ("q", "k", "v", "proj")},
            "mlp": {"fc1": matrix(width, 4 * width), "fc2": matrix(4 * width, width)},
            "ln1": norm(),
            "ln2": norm(),
        }
        for _ in range(layers)
    ]
    embeddings = {"embedding": matrix(vocabulary, width), "pos_embedding": matrix(length, width)}
    return {**embeddings, "layers": blocks, "ln_f": norm(), "head": matrix(width, vocabulary)}


def layer_norm(x, params):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return params["scale"] * (x - mean) / jnp.sqrt(var + 1e-5) + params["bias"]


def transformer_block(params, x):
    q, k, v = (
        (x @ params["attn"][name]).reshape(*x.shape[:2], HEADS, x.shape[-1] // HEADS) for name in ("q", "k", "v")
    )
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
    x = layer_norm(x + attended @ params["attn"]["proj"], params["ln1"])
    return layer_norm(x + jax.nn.gelu(x @ params["mlp"]["fc1"]) @ params["mlp"]["fc2"], params["ln2"])


def model(params, x):
    x = params["embedding"][x] + params["pos_embedding"][: x.shape[1]]
    for block in params["layers"]:
        x = transformer_block(block, x)
    return layer_norm(x, params["ln_f"]) @ params["head"]


def loss_fn(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(params, x), y).mean()


def load_text_data(sequences, length, vocabulary, seed=0):
    """Return sequences of a Markov chain in which every character has a few likely successors."""
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.full(vocabulary, 0.1), size=vocabulary).cumsum(1)
    text = np.zeros((sequences, length + 1), np.int32)
    text[:, 0] = rng.integers(vocabulary, size=sequences)
    for i in range(length):
        text[:, i + 1] = np.minimum((rng.random(sequences)[:, None] > table[text[:, i]]).sum(1), vocabulary - 1)
    return text


def main(
    directory,
    sequences=4000,
    length=32,
    width=64,
    layers=2,
    vocabulary=30,
    epsilon=8.0,
    batch_size=500,
    iterations=100,
    learning_rate=0.5,
    microbatch=None,
):
    text = load_text_data(sequences, length, vocabulary)
    params = init_model_params(vocabulary, width, layers, length)

    problem = ap.Problem(  # Antiphase
        steps=iterations,  # Antiphase
        budget=ap.Budget(epsilon, DELTA),  # Antiphase
        examples=sequences,  # Antiphase
        batch_size=batch_size,  # Antiphase
        clip_norm=CLIPPING_NORM,  # Antiphase
    )  # Antiphase
    plan = ap.plan(problem, ["identity", "toeplitz"], pipelines=["poisson", "cyclic-poisson"])  # Antiphase
    grad_fn = apj.clipped_sum(loss_fn, CLIPPING_NORM, keep_batch_axis=True, microbatch=microbatch)  # Antiphase
    run = ap.Run.open(plan, directory, leaves=apj.leaves(params), examples=sequences)  # Antiphase
    noise, scale = apj.add_correlated_noise(run), optax.scale(1 / batch_size)  # Antiphase
    optimizer = optax.chain(noise, scale, optax.sgd(learning_rate))  # Antiphase

    @jax.jit
    def dp_train_step(params, batch, mask, opt_state):
        clipped_grad_sum = grad_fn(params, (batch[:, :-1], batch[:, 1:]), mask)  # Antiphase
        updates, opt_state = optimizer.update(clipped_grad_sum, opt_state)
        return optax.apply_updates(params, updates), opt_state

    opt_state = optimizer.init(params)
    for batch in apj.batches(run, text, multiple=PADDING_MULTIPLE):  # Antiphase
        params, opt_state = dp_train_step(params, batch.data, batch.mask, opt_state)
        apj.commit(run, opt_state, params, batch.indices)  # Antiphase

    run.publish("the model")  # Antiphase
    found = apj.report(run, opt_state).guarantee.value  # Antiphase
    run.close()  # Antiphase
    test = load_text_data(500, length, vocabulary, seed=0)[-250:]
    loss = float(jax.jit(loss_fn)(params, test[:, :-1], test[:, 1:]))
    print(f"{plan.candidates[0].name}: epsilon {found:.3f}, loss {loss:.4f}")
    return loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="directory for the run")
    parser.add_argument("--sequences", type=int, default=4000)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--microbatch", type=int, default=None)
    main(**vars(parser.parse_args()))
