"""Noise on the device of PyTorch equals N z for every strategy that does not need all of z at once."""

import numpy as np
import pytest
import torch

import antiphase as ap
from antiphase.torch import _device as device
from tests.strategies.test_interpreters import STRATEGIES

STREAMING = [name for name, strategy in STRATEGIES.items() if strategy.recursion().is_causal]


@pytest.mark.parametrize("name", STREAMING)
def test_impulses_give_the_dense_matrix(name):
    strategy = STRATEGIES[name]
    make, z = device.correlator(strategy, "float64"), torch.eye(strategy.rows, dtype=torch.float64)
    made = torch.stack([make(t, z.__getitem__) for t in range(strategy.steps)]).numpy()
    np.testing.assert_allclose(made, strategy.noising(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - set(STREAMING)))
def test_what_needs_all_of_z_is_refused_by_name(name):
    with pytest.raises(ap.Refused, match=r"The noise of \w+ cannot be made on the device"):
        device.correlator(STRATEGIES[name], "float64")
