# %% [markdown]
# # Fine-tuning with PyTorch
#
# In this tutorial, a network is first trained on public data and then fine-tuned on private data. This is the usual way
# to get good accuracy at a small epsilon: the model then learns only what is new from the private data. Opacus computes
# the gradient of each example, and Antiphase adds correlated noise. You need
# `pip install "antiphase[torch]" scikit-learn`.
#
# The data are scikit-learn's handwritten digits. We treat the first 800 as public. The private digits are upside down,
# and a model that has only seen upright digits cannot read them.

# %%
import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from antiphase.torch import PrivacyEngine

images, digits = load_digits(return_X_y=True)
upright, digits = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(digits)
turned = upright.flip(1)  # the pixels in reverse order
public, private, test = slice(0, 800), slice(800, 1500), slice(1500, None)

# %% [markdown]
# ## Train on public data
#
# This part needs no privacy, because it does not use the private examples.

# %%
torch.manual_seed(0)
body, head = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 10)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.01)
for _ in range(100):
    optimizer.zero_grad()
    nn.functional.cross_entropy(head(body(upright[public])), digits[public]).backward()
    optimizer.step()


def accuracy(model, images):
    with torch.no_grad():
        return (model(images[test]).argmax(1) == digits[test]).float().mean().item()


pretrained = nn.Sequential(body, head)
print(f"upright: {accuracy(pretrained, upright):.0%} correct, upside down: {accuracy(pretrained, turned):.0%}")

# %% [markdown]
# ## Fine-tune on private data
#
# The body is frozen, and a new last layer is trained privately. Parameters that are not trained need no noise.
# `make_private_with_epsilon` makes a plan for the budget. The objects that it returns draw the batches, clip the
# gradients and add the noise. The run directory contains the secret and the ledger:

# %%
for parameter in body.parameters():
    parameter.requires_grad_(False)
head = nn.Linear(64, 10)
for parameter in head.parameters():
    nn.init.zeros_(parameter)
model = nn.Sequential(body, head)
optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
engine = PrivacyEngine(f"{tempfile.mkdtemp()}/run")
model, optimizer, loader = engine.make_private_with_epsilon(
    module=model,
    optimizer=optimizer,
    dataset=TensorDataset(turned[private], digits[private]),
    batch_size=70,
    target_epsilon=4.0,
    target_delta=1e-4,
    epochs=8,
    max_grad_norm=1.0,
)
print(engine.plan.candidates[0].name, "with", engine.plan.candidates[0].batches, "batches")
print(engine.plan.notes[-1])

# %% [markdown]
# The last line of the output predicts a good learning rate. The prediction does not use the data, so it costs no
# privacy. Trying several learning rates on the private data would cost privacy. The training loop is the usual one:

# %%
while engine.step < engine.plan.steps:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

# %% [markdown]
# ## What came out
#
# Call `publish` before you release anything. The report is computed from the ledger, so it covers the steps that ran:

# %%
engine.publish("fine-tuned model")
report = engine.report()
print(f"upside down: {accuracy(model, turned):.0%} correct")
print(f"epsilon {report.guarantee.value:.2f} at delta {report.delta:g}, after {report.steps_run} steps")
engine.close()

# %% [markdown]
# ## Next
#
# - [PyTorch](torch.md) explains checkpoints, training with several processes, and what is checked.
# - [Hugging Face](huggingface.md) does the same with a Trainer and LoRA.
# - `antiphase report` writes a page about the run for a reviewer: see [The report](report.md).
