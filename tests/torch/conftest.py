"""One thread: the models are small, and threads that wait for one another take turns with other tests."""

import pytest
import torch

import antiphase._run

torch.set_num_threads(1)


@pytest.fixture
def same_run_id(monkeypatch):
    """Runs in different directories have the same noise and batches."""
    monkeypatch.setattr(antiphase._run, "fresh_run_id", lambda: "0" * 32)
