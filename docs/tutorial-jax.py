# %% [markdown]
# # Training with JAX
#
# This tutorial trains a small network on scikit-learn's handwritten digits, with Optax and correlated noise. You need
# `pip install "antiphase[jax]" scikit-learn`.

# %%
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import antiphase as ap
import antiphase.jax as apj

images, digits = load_digits(return_X_y=True)
images = (images / 16.0).astype(np.float32)
train, test = slice(0, 1500), slice(1500, None)

# %% [markdown]
# ## The model
#
# The loss is a function of the parameters and *one* example. `clipped_sum` needs this form to clip the gradient of each
# example:


# %%
def logits(params, image):
    return jnp.tanh(image @ params["hidden"] + params["bias"]) @ params["out"]


def loss(params, image, digit):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, image), digit)


first, second = jax.random.split(jax.random.key(0))
params = {
    "hidden": jax.random.normal(first, (64, 32)) / 8.0,
    "bias": jnp.zeros(32),
    "out": jax.random.normal(second, (32, 10)) / 6.0,
}

# %% [markdown]
# ## The plan
#
# We train for 10 epochs with batches of 100, at epsilon 4. The workload of the problem includes the momentum, because
# it determines how the noise of a step affects later models:

# %%
problem = ap.Problem(
    steps=150, budget=ap.Budget(4.0, 1e-4), examples=1500, batch_size=100, workload=ap.Momentum(0.9), memory_copies=8
)
plan = ap.plan(problem, ["identity", "toeplitz"], pipelines=["cyclic-poisson", "poisson"])
print(plan.candidates[0].name, "with", plan.candidates[0].batches, "batches")

# %% [markdown]
# ## The training loop
#
# `add_correlated_noise` is an Optax transformation and comes first in the chain. The clipped gradients are summed over
# the batch, so we divide by the *expected* batch size after the noise is added:

# %%
run = ap.Run.open(plan, tempfile.mkdtemp() + "/run", leaves=apj.leaves(params), examples=1500)
optimizer = optax.chain(apj.add_correlated_noise(run), optax.scale(1 / 100), optax.sgd(0.5, momentum=0.9))
clipped = apj.clipped_sum(loss, problem.clip_norm)


@jax.jit
def step(params, state, data, mask):
    updates, state = optimizer.update(clipped(params, data, mask), state, params)
    return optax.apply_updates(params, updates), state


state = optimizer.init(params)
for batch in apj.batches(run, (images[train], digits[train])):
    params, state = step(params, state, batch.data, batch.mask)
    apj.commit(run, state, params, batch.indices)

# %% [markdown]
# ## What came out

# %%
run.publish("accuracy on the test images")
report = apj.report(run, state)
accuracy = float((logits(params, images[test]).argmax(1) == digits[test]).mean())
print(f"{accuracy:.0%} correct, epsilon {report.guarantee.value:.2f} at delta {report.delta:g}")
run.close()

# %% [markdown]
# [JAX](jax.md) explains noise on the device, checkpoints and sharding.
