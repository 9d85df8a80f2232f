# %% [markdown]
# # A federated keyboard model, in miniature
#
# Keyboards on phones learn from what people type to suggest the next word, but the text stays on the phones. In every
# round, some phones train on their own text and send only a clipped update. The server adds noise to the sum of the
# updates. The noise must protect each *user*, not each sentence. Phones cannot be sampled at random, because they take
# part only when they are charging. So the guarantee relies on a minimum separation between two participations of the
# same phone. Without sampling, privacy is not amplified, and correlated noise helps most.
#
# Here, 600 simulated users type words of a small made-up language, and the model predicts the next letter. You only
# need `pip install antiphase`.

# %%
import tempfile

import numpy as np

import antiphase as ap

rng = np.random.default_rng(7)
letters = "abcdefghijklmnopqrstuvwxyz "
words = ["".join(rng.choice(list("aeiou" if i % 2 else "bcdlmnrst")) for i in range(4)) for _ in range(30)]
taste = rng.dirichlet(np.ones(30))


def typed(user):
    """Return what a user has typed, as indices into `letters`: common words and some favourites."""
    own = np.random.default_rng(user)
    liked = 0.7 * taste + 0.3 * own.dirichlet(np.full(30, 0.1))
    return np.array([letters.index(letter) for letter in " ".join(own.choice(words, size=30, p=liked))])


users, per_round, rounds, clip = 600, 60, 60, 1.0
texts = [typed(user) for user in range(users)]
held_out = np.concatenate([typed(user) for user in range(users, users + 100)])

# %% [markdown]
# ## A promise about the phones, and a plan
#
# We promise that two participations of a phone are at least 10 rounds apart. Each phone keeps this promise itself, and
# the server rejects updates that break it. (With Flower, `participation_mod` does the first, and `DPFTRL` the second.
# Here, the run draws batches that keep the promise.) The plan calibrates the noise for the worst case that the promise
# allows:

# %%
problem = ap.Problem(
    steps=rounds,
    budget=ap.Budget(epsilon=8.0, delta=1e-4),
    participation=ap.MinSeparation(separation=users // per_round),
    clip_norm=clip,
    unit="user",
)
plan = ap.plan(problem, ["identity", "blt"])
plain = next(c for c in plan.candidates if c.family == "identity")
print(f"{plan.candidates[0].name}; independent noise leaves {plain.error / plan.error:.1f} times as much in the model")

# %% [markdown]
# ## Rounds
#
# The model is a table of scores for the next letter, given the previous letter. A phone takes a few steps of gradient
# descent on its own text, and sends the difference, clipped to norm 1:


# %%
def probabilities(model, text):
    scores = np.exp(model[text[:-1]] - model[text[:-1]].max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True)


def update(model, text):
    trained = model.copy()
    for _ in range(2):
        residual = probabilities(trained, text)
        residual[np.arange(len(text) - 1), text[1:]] -= 1.0
        np.add.at(trained, text[:-1], -20.0 * residual / len(text))
    change = trained - model
    return change * min(1.0, clip / max(np.linalg.norm(change), 1e-12))


def bits(model, text):
    return -np.log2(probabilities(model, text)[np.arange(len(text) - 1), text[1:]]).mean()


model = np.zeros((27, 27))
with ap.Run.open(plan, tempfile.mkdtemp() + "/run", leaves=[model.shape], examples=users) as run:
    for step in range(run.steps):
        phones, present = run.batch(step)
        total = sum((update(model, texts[phone]) for phone in phones[present]), np.zeros_like(model))
        model = model + 4.0 * (total + run.gradient_noise(step)[0]) / per_round
        run.commit(step, run.digest(step, [model]))
        if step % 20 == 19:
            print(f"round {step + 1}: {bits(model, held_out):.2f} bits per letter")
    run.publish("keyboard model")
    report = run.report()

# %% [markdown]
# ## What came out

# %%
print(f"without a model, a letter takes {np.log2(27):.2f} bits; with it {bits(model, held_out):.2f}")
print(f"epsilon {report.guarantee.value:.2f} at delta {report.delta:g} for one {report.unit}")

# %% [markdown]
# This model is tiny, but production keyboards are trained with the same mechanism: BLT noise with a minimum separation
# (McMahan, Xu and Zhang 2024). [Flower](flower.md) runs it with real clients. The server strategy `DPFTRL` sums the
# updates and adds noise. A mod on each phone clips the update and keeps the promise.
