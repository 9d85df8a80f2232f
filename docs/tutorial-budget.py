# %% [markdown]
# # Choosing a budget
#
# How small can epsilon be before the model becomes useless? Before you use any private data, the planner can tell you
# how much noise each choice adds to the model. This tutorial compares epsilons, batch sizes and numbers of epochs for
# one training run, and ends with a plan to run. You only need `pip install antiphase`. The run has 20,000 examples,
# batches of 200 and 5 epochs, so 500 steps.

# %%
import antiphase as ap

examples, batch_size, epochs = 20_000, 200, 5
steps = epochs * examples // batch_size
delta = 1e-6  # well below 1 / examples
quick = ["cyclic-poisson", "poisson"]  # ways to draw batches whose accounting is quick and needs no random samples


def best(epsilon, steps=steps, batch_size=batch_size, families=None):
    budget = ap.Budget(epsilon, delta)
    problem = ap.Problem(steps, budget, examples=examples, batch_size=batch_size, objective="rms", memory_copies=8)
    return ap.plan(problem, families or ["identity", "toeplitz"], pipelines=quick)


# %% [markdown]
# ## What does a stricter epsilon cost?
#
# `plan.error` is the noise in the model for gradients clipped to norm 1. We use the objective "rms", the root mean
# square of the noise over all steps, because it is defined in the same way for every epsilon. What counts is the noise
# relative to the sum of gradients, so we divide the noise by the batch size:

# %%
print("epsilon   noise, best mechanism    noise, DP-SGD   mechanism")
for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0):
    plan, plain = best(epsilon), best(epsilon, families=["identity"])
    name = plan.candidates[0].name
    print(f"{epsilon:7} {plan.error / batch_size:23.3f} {plain.error / batch_size:16.3f}   {name}")

# %% [markdown]
# Compare the rows: when epsilon is halved, the noise less than doubles, because sampling amplifies privacy more if
# there is more noise. Compare the columns: correlated noise gains most at large epsilon. At small epsilon, DP-SGD is
# nearly as good.
#
# ## Larger batches, or more epochs?
#
# With larger batches, the average gradient has less noise, but there are fewer steps in the same number of epochs:

# %%
print("batch size   steps   noise")
for size in (50, 100, 200, 400, 800):
    number = epochs * examples // size
    print(f"{size:10} {number:7} {best(2.0, number, size).error / size:7.3f}")

# %% [markdown]
# More epochs cost privacy, but training may need them:

# %%
print("epochs   steps   noise")
for passes in (1, 2, 5, 10):
    number = passes * examples // batch_size
    print(f"{passes:6} {number:7} {best(2.0, number).error / batch_size:7.3f}")

# %% [markdown]
# ## From a table to a plan
#
# Suppose you choose epsilon 2 with batches of 400. Plan again with the default objective, which measures the noise that
# is left at the end of training, plus the noise over all steps:

# %%
problem = ap.Problem(
    steps=epochs * examples // 400, budget=ap.Budget(2.0, delta), examples=examples, batch_size=400, memory_copies=8
)
plan = ap.plan(problem, pipelines=quick)
print(plan)

# %% [markdown]
# With the plan, you can also compute epsilon if you stop early, or for a smaller delta:

# %%
for stop in (plan.steps // 2, plan.steps):
    print(f"after {stop} steps: epsilon {ap.epsilon(plan.mechanism.first(stop), delta).value:.3f} at delta {delta}")
print(f"all steps: epsilon {ap.epsilon(plan.mechanism, 1e-8).value:.3f} at delta 1e-08")

# %% [markdown]
# The tables do not show two points:
#
# - **Choices that depend on the data cost privacy.** This page uses no data, so its choices cost nothing. But it costs
#   privacy to train with five epsilons on the private data and keep the best model.
# - **Epsilon holds for one unit of privacy.** If one person contributes ten examples, plan for users
#   (`Problem(unit="user")`, one item per user), not for examples.
#
# `antiphase explore` shows the same trade-offs on a page, with sliders. See [Explore a plan](explore.md).
