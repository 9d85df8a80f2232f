"""Training that is killed anywhere and resumed ends with the same bits, and checkpoints contain no secrets."""

import hashlib
import json
import subprocess
import sys

import pytest
import torch

import antiphase as ap
from tests.torch.training import HOOKS, plan_for, private, run, train


@pytest.mark.parametrize(
    "mode",
    [
        "hooks",
        "lattice",
        pytest.param("ghost", marks=pytest.mark.slow),
        pytest.param("poisson", marks=pytest.mark.slow),
    ],
)
def test_killed_in_every_step(tmp_path, mode):
    command = [sys.executable, "-W", "ignore", "-m", "tests.torch.killed", str(tmp_path), mode]
    subprocess.run(command, check=True, timeout=300)
    steady, killed = (torch.load(tmp_path / name / "parameters.pt") for name in ("steady", "killed"))
    assert all(torch.equal(a, b) for a, b in zip(steady, killed, strict=True))


@pytest.mark.filterwarnings(HOOKS)
@pytest.mark.usefixtures("same_run_id")
def test_stopped_in_the_middle_of_an_epoch(tmp_path):
    steady, _ = run(tmp_path / "steady", plan_for())
    engine, module, optimizer, criterion, loader = private(tmp_path / "run", plan_for())
    for batch in loader:
        optimizer.zero_grad()
        criterion(module(batch[0]), batch[1]).backward()
        optimizer.step()
        if engine.step == 3:
            break
    state = engine.state_dict()
    stored = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "privacy": state}
    torch.save(stored, tmp_path / "checkpoint.pt")
    engine.close()

    engine, module, optimizer, criterion, loader = private(tmp_path / "run", plan_for())
    with pytest.raises(ap.Refused, match="unknown how many of them the model has"):
        next(iter(loader))
    stored = torch.load(tmp_path / "checkpoint.pt")
    module.load_state_dict(stored["model"])
    optimizer.load_state_dict(stored["optimizer"])
    engine.load_state_dict(stored["privacy"])
    assert (engine.step, engine.epoch) == (3, 0)
    train(module, optimizer, criterion, loader, 3)
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in optimizer.params]), steady)
    report = engine.report()
    assert (report.steps_run, report.rewinds) == (12, 0)
    engine.close()


@pytest.mark.filterwarnings(HOOKS)
def test_the_checkpoint_holds_run_id_step_and_a_code_of_public_entries_alone(tmp_path):
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for())
    train(module, optimizer, criterion, loader, 1)
    state = engine.state_dict()
    lines = (tmp_path / "public" / "ledger.jsonl").read_text().splitlines()
    entries = [json.loads(line.rsplit(" ", 1)[0]) for line in lines]
    digests = [bytes.fromhex(entry["digest"]) for entry in entries if entry["kind"] == "commit"]
    code = hashlib.sha256(b"".join(digests)).hexdigest()
    parameters = ap.digest([p.detach().numpy() for p in module.parameters()]).hex()
    assert state == {"run_id": engine.noise.run_id, "step": 4, "branch": code, "parameters": parameters}
    plain = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9).state_dict()
    assert optimizer.state_dict()["param_groups"] == plain["param_groups"]
    for kept in optimizer.state_dict()["state"].values():
        assert set(kept) == {"momentum_buffer"}
    assert set(module.state_dict()) == {f"_module.{i}.{name}" for i in (0, 2) for name in ("weight", "bias")}
    engine.close()
