"""Every change of the parameters, and every noisy output that is dropped, has an entry in the ledger."""

import copy
import io
import pickle
from functools import partial

import pytest
import torch

import antiphase as ap
from antiphase._run import Run
from antiphase.torch import NoiseAdder
from tests.torch.training import HOOKS, SECRET, plan_for, private, train

pytestmark = pytest.mark.filterwarnings(HOOKS)


def weights(module):
    return torch.cat([p.detach().reshape(-1).clone() for p in module.parameters()])


def one_step(module, optimizer, criterion, loader):
    x, y = next(iter(loader))
    optimizer.zero_grad()
    criterion(module(x), y).backward()
    optimizer.step()


def test_a_step_is_recorded_before_the_weights_move(tmp_path, monkeypatch):
    engine, module, *rest = private(tmp_path, plan_for())
    seen, right = [], Run._commit

    def commit(self, step, digest, **options):
        right(self, step, digest, **options)
        seen.append(weights(module))

    monkeypatch.setattr(Run, "_commit", commit)
    before = weights(module)
    one_step(module, *rest)
    assert torch.equal(seen[0], before)
    assert not torch.equal(weights(module), before)
    engine.close()


def test_a_refused_step_moves_nothing(tmp_path):
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for())
    first = copy.deepcopy(module.state_dict())
    train(module, optimizer, criterion, loader, 1)
    state = engine.state_dict()
    engine.publish("model")
    engine.restart()
    for words in ("started with different parameters", "replayed with a different output"):
        before = weights(module)
        with pytest.raises(ap.Refused, match=words):
            one_step(module, optimizer, lambda output, target: -criterion(output, target), loader)
        assert torch.equal(weights(module), before)
        engine.restart()
        module.load_state_dict(first)
    engine.load_state_dict(state)
    assert engine.report().rewinds == 2  # the outputs that were refused
    engine.close()


def test_a_step_that_fails_half_way_is_recorded(tmp_path):
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for())

    def failing(*_):
        raise MemoryError

    optimizer.original_optimizer.register_step_pre_hook(failing)
    with pytest.raises(MemoryError):
        one_step(module, optimizer, criterion, loader)
    report = engine.report()
    assert (report.steps_run, report.rewinds) == (1, 0)
    engine.close()


class Unhooked(torch.optim.SGD):
    def step(self, closure=None):
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.sub_(p.grad)

    step.hooked = True


def test_an_optimizer_without_hooks_is_recorded_and_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.optim, "SGD", Unhooked)
    engine, *rest = private(tmp_path, plan_for())
    with pytest.raises(ap.Refused, match="Unhooked updated the parameters before"):
        one_step(*rest)
    assert engine.report().steps_run == 1
    engine.close()


@pytest.mark.parametrize("drop", ["load", "restart", "close"])
def test_an_output_dropped_before_its_commit_is_recorded(tmp_path, drop):
    """The noise of step 1 on two gradients, of which one is never committed: who sees both sees the difference."""

    def adder():
        return NoiseAdder([weight], plan_for(), tmp_path, examples=40, secret=SECRET)

    weight = torch.zeros(3, requires_grad=True)
    noise = adder()
    noise.batch()
    noise.add()
    noise.commit()
    state = noise.state_dict()
    noise.batch()
    noise.add()
    if drop == "close":
        noise.close()
        noise = adder()
    else:
        noise.restart() if drop == "restart" else noise.load_state_dict(state)
    report = noise.report()
    assert (report.steps_run, report.rewinds) == (1, 1)
    assert any("replaced 1 time" in remark for remark in report.remarks)
    noise.close()


def test_a_step_that_is_replayed_as_it_was_is_no_rewind(tmp_path):
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for(), lr=0.0, momentum=0.0)
    train(module, optimizer, criterion, loader, 1)
    engine.restart()
    train(module, optimizer, criterion, loader, 3)
    report = engine.report()
    assert (report.steps_run, report.rewinds) == (12, 0)
    engine.close()


def test_every_step_needs_its_own_batch(tmp_path):
    weight = torch.zeros(3, requires_grad=True)
    with NoiseAdder([weight], plan_for(), tmp_path, examples=40, secret=SECRET) as noise:
        noise.batch(7)
        with pytest.raises(ap.Refused, match="batch of step 0 was not requested"):
            noise.add()
        first = noise.batch().indices.tolist()
        assert noise.batch().indices.tolist() == first  # asked twice, the same
        noise.add()
        noise.commit()
        with pytest.raises(ap.Refused, match="batch of step 1 was not requested"):
            noise.add()
        noise.restart()
        with pytest.raises(ap.Refused, match="batch of step 0 was not requested"):
            noise.add()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_nothing_that_holds_a_run_or_gradients_of_examples_is_pickled(tmp_path, mode):
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for(), grad_sample_mode=mode)
    one_step(module, optimizer, criterion, loader)
    held = [engine, engine.noise, engine.noise._run, module, module._module, optimizer, loader]
    for thing in held if mode == "hooks" else [*held, criterion]:
        for save in (pickle.dumps, copy.deepcopy, copy.copy, partial(torch.save, f=io.BytesIO())):
            if save is copy.copy and thing in (module._module, loader, criterion):
                continue  # in memory, and all that it holds is the same object
            with pytest.raises(ap.Refused, match="cannot be pickled"):
                save(thing)
    for state in (module.state_dict(), optimizer.state_dict(), engine.state_dict()):
        torch.save(state, io.BytesIO())
    engine.close()


def test_a_run_from_a_device_is_not_gone_on_with_from_the_host(tmp_path):
    plan, leaves = plan_for(), {"0": ap.Leaf((4,))}
    with NoiseAdder([torch.zeros(4)], plan, tmp_path, examples=40, secret=SECRET, source="device") as noise:
        noise.batch()
        noise.add()
        noise.commit()
    with ap.Run.open(plan, tmp_path, leaves=leaves, examples=40, secret=SECRET) as run:
        with pytest.raises(ap.Refused, match="a different source: PyTorch's generator on cpu"):
            run._unit_noise(1)
        assert any("not cryptographic" in remark for remark in run.report().remarks)


def test_another_generator_is_noticed(tmp_path, monkeypatch):
    def adder():
        return NoiseAdder([torch.zeros(4)], plan_for(), tmp_path, secret=SECRET, source="device")

    adder().close()
    adder().close()
    right = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *args, **options: right(*args, **options).flip(0))
    with pytest.raises(ap.Refused, match="a different source"):
        adder()
