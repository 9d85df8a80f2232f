"""The scripts in examples/ run at a small size, and so does Opacus's loop with the changed lines of docs/torch.md."""

import importlib.util
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import antiphase as ap
from tests.torch.training import HOOKS, PEFT

pytestmark = pytest.mark.filterwarnings(HOOKS)
ROOT = Path(__file__).parents[2]


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_digits_goes_on_where_it_stopped(tmp_path, capsys):
    options = {"epochs": 1, "batch_size": 300, "epsilon": 8.0}
    first = example("digits_opacus").main(tmp_path, **options)
    assert "epsilon" in capsys.readouterr().out
    assert example("digits_opacus").main(tmp_path, **options) == first


def test_next_token_for_users(tmp_path, capsys):
    bits = example("next_token_users").main(tmp_path, users=200, steps=20, users_per_step=50, epsilon=50.0)
    assert bits < 4.75
    assert "for one user" in capsys.readouterr().out


def test_opacus_loop_with_five_changed_lines(tmp_path, monkeypatch):
    block = re.search(r"^```diff\n(.*?)^```$", (ROOT / "docs" / "torch.md").read_text(), re.MULTILINE | re.DOTALL)
    lines = block[1].splitlines()
    added, removed = ([line for line in lines if line[:1] == sign] for sign in "+-")
    assert len(added) == len(removed) <= 5
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ap, "plan", partial(ap.plan, families=["blt"]))  # for speed
    names = {"Net": lambda: nn.Linear(4, 2), "SGD": torch.optim.SGD, "torch": torch}
    names["dataset"] = torch.utils.data.TensorDataset(torch.randn(60_000, 4), torch.randint(0, 2, (60_000,)))
    exec("\n".join(line[1:] for line in lines if line[:1] != "-"), names)
    assert names["privacy_engine"].step == names["epochs"] * len(names["data_loader"])
    names["privacy_engine"].close()


@pytest.mark.filterwarnings(PEFT, "ignore:Model has .tie_word_embeddings", "ignore:.pin_memory")
def test_lora_with_trainer_goes_on_where_it_stopped(tmp_path, capsys):
    options = {"examples": 60, "steps": 6, "batch_size": 20, "epsilon": 20.0}
    first = example("lora_trainer").main(tmp_path, **options)
    assert "epsilon" in capsys.readouterr().out
    assert example("lora_trainer").main(tmp_path, **options) == first
