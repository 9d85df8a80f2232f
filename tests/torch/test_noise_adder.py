"""`NoiseAdder`, for any training loop: which noise it adds, to which gradients, how often, and what it refuses."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import torch

import antiphase as ap
from antiphase.torch import NoiseAdder, _noise_adder
from tests.torch.training import SECRET, STEPS, plan_for

SHAPES = [(3, 2), (5,), (), (2, 2, 2)]


def parameters(dtype=torch.float32):
    return [torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in SHAPES]


def reference(noise, plan, dtype="float32"):
    """Return a `NoiseStream` with the noise of the run, one flat leaf per parameter."""
    return ap.NoiseStream(plan, [(6,), (5,), (1,), (8,)], SECRET, noise.run_id, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adds_the_streams_noise_times_the_clipping_norm(tmp_path, dtype):
    plan, trained = plan_for(clip_norm=0.25), parameters(dtype)
    with NoiseAdder(trained, plan, tmp_path, examples=40, secret=SECRET) as noise:
        stream = reference(noise, plan, str(dtype).removeprefix("torch."))
        for step in range(STEPS):
            for p in trained:
                p.grad = torch.full_like(p, step)
            held = [p.grad for p in trained]
            with pytest.raises(ap.Refused, match="not requested"):
                noise.add()
            assert noise.batch().indices.size == 10
            noise.add()
            for p, before, z in zip(trained, held, stream.next(), strict=True):
                assert p.grad is before  # in place
                assert p.grad.numpy() == pytest.approx(step + 0.25 * z.reshape(p.shape), rel=1e-6, abs=1e-6)
            noise.commit()
        assert noise.report().steps_run == STEPS


def test_any_memory_layout(tmp_path):
    weight = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    plan = plan_for()
    with NoiseAdder([weight], plan, tmp_path, secret=SECRET) as noise:
        weight.grad = torch.ones_like(weight)
        noise.add()
        expected = ap.NoiseStream(plan, [(96,)], SECRET, noise.run_id).next()[0].reshape(2, 3, 4, 4)
        assert np.array_equal(weight.grad.numpy(), 1 + expected)


def test_a_missing_gradient_is_zero(tmp_path):
    trained = parameters()
    with NoiseAdder(trained, plan_for(), tmp_path, secret=SECRET) as noise:
        noise.add()
        assert all((p.grad != 0).all() for p in trained)


def test_once_a_step(tmp_path):
    with NoiseAdder(parameters(), plan_for(), tmp_path, secret=SECRET) as noise:
        with pytest.raises(ap.Refused, match="has not been added"):
            noise.commit()
        noise.add()
        with pytest.raises(ap.Refused, match="already been added"):
            noise.add()
        with pytest.raises(ap.Refused, match="not committed"):
            noise.state_dict()
        noise.commit()
        assert noise.step == 1


REPLACED = {
    "dropped": lambda p: setattr(p, "grad", None),
    "dropped and made again": lambda p: (setattr(p, "grad", None), p.sum().backward()),
    "another": lambda p: setattr(p, "grad", torch.ones_like(p)),
    "a copy": lambda p: setattr(p, "grad", p.grad.clone()),
}


@pytest.mark.parametrize("source", ["host", "device"])
@pytest.mark.parametrize("way", REPLACED)
def test_gradients_replaced_after_the_noise_are_not_committed(tmp_path, way, source):
    """They have no noise: a second backward pass, or zero_grad, came between."""
    trained = parameters()
    with NoiseAdder(trained, plan_for(), tmp_path, secret=SECRET, source=source) as noise:
        noise.add()
        REPLACED[way](trained[1])
        for _ in range(2):
            with pytest.raises(ap.Refused, match="gradient of parameter 1 is not the tensor"):
                noise.commit()
        assert noise.report().steps_run == 0
        noise.restart()
        noise.add()
        noise.commit()
        assert (noise.report().steps_run, noise.report().rewinds) == (1, 1)  # the output that was dropped


def test_gradients_changed_in_place_after_the_noise_are_committed(tmp_path):
    trained = parameters()
    with NoiseAdder(trained, plan_for(), tmp_path, secret=SECRET) as noise:
        for _ in range(3):
            noise.add()
            for p in trained:
                p.grad /= 10
                p.grad.mul_(2)
                p.grad.data.add_(0.0)
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            noise.commit()
            for p in trained:
                p.grad = None
        assert noise.report().steps_run == 3


@pytest.mark.parametrize("depth", [1, 2])
def test_gradients_side_by_side_are_not_given_the_same_noise(tmp_path, depth):
    weight = torch.zeros(4, requires_grad=True)
    with NoiseAdder([weight], plan_for(), tmp_path, secret=SECRET) as noise:

        def add(gradient):
            weight.grad = gradient
            noise.add()
            return weight.grad

        mapped = add
        for _ in range(depth):
            mapped = torch.func.vmap(mapped)
        with pytest.raises(ap.Refused, match=r"NoiseAdder\.add was called inside torch\.func\.vmap"):
            mapped(torch.arange(16.0).reshape(*[2] * depth, -1)[..., :4])
        weight.grad = None
        noise.add()
        noise.commit()
        assert noise.report().rewinds == 0


def test_of_many_threads_one_adds_noise(tmp_path, monkeypatch):
    """Added twice, the difference of two such steps shows what is in none of them."""
    weight = torch.zeros(4, requires_grad=True)
    plan, count = plan_for(), 8
    with NoiseAdder([weight], plan, tmp_path, secret=SECRET) as noise:
        make, meeting = _noise_adder.read_noise, threading.Barrier(count)

        def met(run, step):
            made = make(run, step)
            with suppress(threading.BrokenBarrierError):
                meeting.wait(timeout=0.2)
            return made

        def add(_):
            try:
                noise.add()
            except ap.Refused:
                return False
            return True

        monkeypatch.setattr(_noise_adder, "read_noise", met)
        weight.grad = torch.zeros(4)
        with ThreadPoolExecutor(count) as threads:
            assert sum(threads.map(add, range(count))) == 1
        expected = ap.NoiseStream(plan, [(4,)], SECRET, noise.run_id).next()[0]
        assert np.array_equal(weight.grad.numpy(), expected)


def test_ends_with_the_plan(tmp_path):
    with NoiseAdder(parameters(), plan_for(), tmp_path, secret=SECRET) as noise:
        for _ in range(STEPS):
            noise.add()
            noise.commit()
        with pytest.raises(ap.Refused, match="has ended"):
            noise.add()


def test_resumes_only_where_the_model_stands(tmp_path):
    with NoiseAdder(parameters(), plan_for(), tmp_path, secret=SECRET) as noise:
        noise.add()
        noise.commit()
        state = noise.state_dict()
    assert set(state) == {"run_id", "step", "branch", "parameters"}
    with NoiseAdder(parameters(), plan_for(), tmp_path, secret=SECRET) as noise:
        with pytest.raises(ap.Refused, match="unknown how many of them the model has"):
            noise.add()
        with pytest.raises(ap.InvalidArgument, match="belongs to run"):
            noise.load_state_dict({**state, "run_id": "other"})
        with pytest.raises(ap.Refused, match="is an older copy"):
            noise.load_state_dict({**state, "step": 2})
        noise.load_state_dict(state)
        assert noise.step == 1
        noise.restart()
        assert noise.step == 0


def test_a_changed_replay_after_a_publication_is_refused(tmp_path):
    trained = parameters()
    with NoiseAdder(trained, plan_for(), tmp_path, secret=SECRET) as noise:
        noise.add()
        noise.commit()
        noise.publish("model")
        noise.restart()
        trained[0].grad = torch.ones_like(trained[0])
        noise.add()
        with pytest.raises(ap.Refused, match="replayed with a different output"):
            noise.commit()


def test_report_says_what_ran(tmp_path):
    plan = plan_for()
    with NoiseAdder(parameters(), plan, tmp_path, secret=SECRET) as noise:
        for _ in range(5):
            noise.add()
            noise.commit()
        report = noise.report()
    assert report.guarantee.value == ap.epsilon(plan.mechanism.first(5), 1e-6).value < report.planned.value
    assert any("Stopped after 5 of 12" in remark for remark in report.remarks)
    assert any("drew no batches" in remark for remark in report.remarks)


def test_bad_parameters(tmp_path):
    one = torch.zeros(2)
    for bad, error in (
        (one, "list of tensors"),
        ([], "one or more"),
        ([one, one], "twice"),
        ([one, one.double()], "float32"),
        ([one.half()], "float32"),
    ):
        with pytest.raises(ap.InvalidArgument, match=error):
            NoiseAdder(bad, plan_for(), tmp_path / "none")
    with pytest.raises(ap.InvalidArgument, match="source"):
        NoiseAdder([one], plan_for(), tmp_path / "none", source="disk")


def test_an_extended_plan_goes_on_with_the_same_noise(tmp_path):
    plan, trained = plan_for(), parameters()
    longer = plan.extend(STEPS + 4)
    with NoiseAdder(trained, plan, tmp_path, secret=SECRET) as noise:
        for _ in range(5):
            noise.add()
            noise.commit()
        state = noise.state_dict()
    with NoiseAdder(trained, longer, tmp_path, secret=SECRET) as noise:
        noise.load_state_dict(state)
        stream = reference(noise, longer)
        made = [stream.next() for _ in range(longer.steps)]
        while noise.step < longer.steps:
            for p in trained:
                p.grad = None
            step = noise.step
            noise.add()
            for p, z in zip(trained, made[step], strict=True):
                assert np.array_equal(p.grad.numpy(), z.reshape(p.shape))
            noise.commit()
        assert noise.report().steps_run == STEPS + 4


@pytest.mark.parametrize("missing", ["torch", "opacus"])
def test_a_missing_package_names_the_command(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; import antiphase.torch"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError" in result.stderr
    assert "pip install antiphase[torch]" in result.stderr


def test_noise_on_some_of_the_gradients_is_not_committed(tmp_path):
    weights = [torch.zeros(3), torch.zeros(3)]
    with NoiseAdder(weights, plan_for(), tmp_path, secret=SECRET) as noise:
        weights[1].grad = torch.zeros(3, requires_grad=True)  # cannot be changed in place
        with pytest.raises(RuntimeError, match="in-place"):
            noise.add()
        assert weights[0].grad.abs().min() > 0
        with pytest.raises(ap.Refused, match="has not been added"):
            noise.commit()
        with pytest.raises(ap.Refused, match="already been added"):
            noise.add()
        with pytest.raises(ap.Refused, match="not committed"):
            noise.state_dict()
        noise.restart()
        assert noise.report().rewinds == 1
        weights[1].grad = None
        noise.add()
        noise.commit()


@pytest.mark.parametrize("wrong", [None, 3, torch.nn.Linear(2, 1)])
def test_parameters_that_are_no_list_are_refused(tmp_path, wrong):
    with pytest.raises(ap.InvalidArgument, match="'parameters'"):
        NoiseAdder(wrong, plan_for(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_no_plan_is_refused(tmp_path):
    for wrong in (None, plan_for().mechanism):
        with pytest.raises(ap.InvalidArgument, match="must be a Plan"):
            NoiseAdder(parameters(), wrong, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_sparse_gradient_is_refused_and_may_be_made_dense(tmp_path):
    table = torch.nn.Embedding(6, 2, sparse=True)
    with NoiseAdder(table.parameters(), plan_for(), tmp_path, secret=SECRET) as noise:
        table(torch.tensor([1, 4])).sum().backward()
        with pytest.raises(ap.Refused, match="sparse"):
            noise.add()
        table.weight.grad = table.weight.grad.to_dense()
        noise.add()
        noise.commit()
        assert (table.weight.grad != 0).all()


@pytest.mark.parametrize("change", [{"step": 0.5}, {"step": "0"}, {"step": None}, {"step": True}, {"run_id": None}])
def test_a_checkpoint_of_something_else_is_refused_by_name(tmp_path, change):
    with NoiseAdder(parameters(), plan_for(), tmp_path, secret=SECRET) as noise:
        state = noise.state_dict()
        for wrong in (state | change, {}, None):
            with pytest.raises(ap.InvalidArgument, match="'state'"):
                noise.load_state_dict(wrong)
        noise.load_state_dict(state)


def test_a_backward_pass_between_add_and_commit(tmp_path):
    """It would add gradients without noise to the same tensor."""
    weight = torch.zeros(3, requires_grad=True)
    with NoiseAdder([weight], plan_for(), tmp_path, secret=SECRET) as noise:
        state = noise.state_dict()
        (2 * weight.sum()).backward()
        noise.add()
        (100 * weight.sum()).backward()
        for _ in range(2):
            with pytest.raises(ap.Refused, match="backward was called after the noise of step 0"):
                noise.commit()
        noise.load_state_dict(state)
        for step in range(2):
            weight.grad = None
            (2 * weight.sum()).backward()
            noise.add()
            weight.grad.div_(8)
            noise.commit()
            assert noise.step == step + 1
        assert not weight._post_accumulate_grad_hooks
