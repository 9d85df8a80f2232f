"""Audits of antiphase.torch: right engines are not flagged, and each planted mistake is found."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import antiphase as ap
from antiphase.audit import Release, evaluate, final_models
from antiphase.audit.torch import drive_final_model
from tests.audit.engines.models import CANARIES, plan
from tests.audit.engines.planted_numpy import POISSON
from tests.audit.engines.planted_torch import BUGS, tied_example
from tests.audit.engines.processes import SEEN_BY
from tests.audit.engines.torch_audits import audit, data, network, real_example, released
from tests.torch.training import HOOKS

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings(HOOKS)
RIGHT = {
    "hooks": {},
    "hooks, sum, pieces": {"loss_reduction": "sum", "physical": 8},
    "functorch": {"mode": "functorch"},
    "ghost": {"mode": "ghost"},
    "poisson": {"given": POISSON},
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_engines_are_not_flagged(tmp_path, name):
    assert audit(tmp_path, seed=2, **RIGHT[name]).findings == ()


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_a_real_example_is_clipped(tmp_path, mode):
    assert not real_example(tmp_path, seed=2, mode=mode).departs


def test_a_real_example_through_tied_weights_is_clipped(tmp_path):
    assert not tied_example(tmp_path, seed=2).departs


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if bug.slow else ()) for name, bug in BUGS.items()]
)
def test_a_planted_mistake_is_found(tmp_path, name):
    seen, findings = BUGS[name].is_seen(tmp_path)
    assert seen, findings


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Two processes for all audits of DDP and FSDP."""
    directory = tmp_path_factory.mktemp("together")
    command = [sys.executable, "-W", "ignore", "-m", "tests.audit.engines.processes", str(directory)]
    subprocess.run(command, check=True, timeout=300)
    return directory


@pytest.mark.parametrize("name", SEEN_BY)
def test_two_processes(together, name):
    seen_by = SEEN_BY[name]
    release = Release.load(together / f"{name}.npz")
    findings = evaluate(plan(), release).findings
    assert any(seen_by in text for text in findings) if seen_by else findings == (), findings
    assert release.taking_part.any(axis=0).all()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_the_final_model_is_the_sum_of_what_was_released(tmp_path, mode):
    """With plain SGD, the canary weights move in proportion to the sum over all released steps, noise included."""
    white = released(tmp_path / "white", mode=mode, quiet=0)
    secret = ap.Secret.insecure(1)
    options = {"canaries": CANARIES, "secret": secret, "mode": mode}
    black = drive_final_model(plan(), tmp_path / "black", network(), data(), nn.CrossEntropyLoss(), **options)
    assert (black.present == white.present).all()
    expected = final_models(white).scores
    factor = black.scores @ expected / (expected @ expected)
    assert factor > 0
    assert abs(black.scores - factor * expected).max() < 1e-4 * abs(factor * expected).max()
