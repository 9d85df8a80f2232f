"""Fixtures of the PyTorch tests, which use one thread.

The models are small, and several threads would wait for each other while other tests use the processor.
"""

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
    hook = sys.excepthook  # torch replaces it with a hook that names the rank
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    sys.excepthook = hook
