"""Training with torch.compile gives the same parameters, and the compiler never sees secrets."""

import subprocess
import sys

import pytest
import torch

from tests.torch.training import HOOKS, network, plan_for, private

pytestmark = [
    pytest.mark.filterwarnings(HOOKS),
    pytest.mark.filterwarnings("ignore"),  # warnings of the compiler
    pytest.mark.usefixtures("same_run_id"),
]


def trained(path, mode, how):
    torch._dynamo.reset()
    plain = network()
    if how == "model before":
        plain = torch.compile(plain, backend="eager")
    engine, module, optimizer, criterion, loader = private(path, plan_for(), plain, grad_sample_mode=mode)
    used = torch.compile(module, backend="eager") if how == "model after" else module

    def step(x, y):
        optimizer.zero_grad()
        criterion(used(x), y).backward()
        optimizer.step()

    step = torch.compile(step, backend="eager") if how == "step" else step
    with engine:
        for x, y in loader:
            step(x, y)
        assert engine.step == len(loader)
    return torch.cat([p.detach().flatten() for p in optimizer.params])


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_compiled_models_and_steps_are_the_same(tmp_path, mode):
    wanted = trained(tmp_path / "plain", mode, "plain")
    for how in ("step", "model before", "model after"):
        assert torch.allclose(trained(tmp_path / how, mode, how), wanted, atol=1e-6), how


def test_importing_the_library_does_not_import_the_compiler():
    code = "import sys, antiphase.torch; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
