"""One thread: the models are small, and threads that wait for one another take turns with other tests."""

import sys

import pytest
import torch
import torch.distributed as dist

torch.set_num_threads(1)


@pytest.fixture
def same_run_id(monkeypatch):
    """Runs in different directories have the same noise and batches."""
    monkeypatch.setattr("antiphase._run.opening.fresh_run_id", lambda: "0" * 32)


@pytest.fixture
def one_process(tmp_path):
    """torch.distributed with this process alone."""
    hook = sys.excepthook  # torch puts one there that names the rank
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    sys.excepthook = hook
