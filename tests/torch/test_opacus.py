"""Training with Opacus and a plan: gradients against brute force, batches (also empty ones), and what is refused."""

import numpy as np
import pytest
import torch
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn

import antiphase as ap
import antiphase.torch
from antiphase.torch._options import batch_size
from tests.torch.statistics import clipped_gradients
from tests.torch.training import EXAMPLES, HOOKS, SECRET, STEPS, data, network, plan_for, private, record, run, train

pytestmark = [pytest.mark.filterwarnings(HOOKS), pytest.mark.usefixtures("same_run_id")]
CLIP = 0.5
MODES = {
    "hooks": {},
    "functorch": {"grad_sample_mode": "functorch"},
    "ew": {"grad_sample_mode": "ew"},
    "per layer": {"clipping": "per_layer"},
    "ghost": {"grad_sample_mode": "ghost"},
    "sum": {"loss_reduction": "sum"},
    "ghost, sum": {"grad_sample_mode": "ghost", "loss_reduction": "sum"},
}
SPARSE = plan_for(ap.strategies.Identity(STEPS), ap.Poisson(0.03), clip_norm=CLIP)


def expected_gradients(engine, plan, per_layer=False, divisor=1.0):
    """Return (sum of clipped gradients + clip_norm * noise) / divisor for every step.

    The result is computed without Opacus and without the run.
    """
    module = network()
    clipped = clipped_gradients(module, data(), plan.problem.clip_norm, per_layer)
    stream = ap.NoiseStream(plan, [(p.numel(),) for p in module.parameters()], SECRET, engine.noise.run_id)
    sampler = plan.mechanism.participation.sampler(EXAMPLES, plan.steps, SECRET.child("batches", engine.noise.run_id))
    rows = []
    for step in range(plan.steps):
        indices, mask = sampler.batch(step)
        noise = np.concatenate(stream.next())
        rows.append((clipped[indices[mask]].sum(0).numpy() + plan.problem.clip_norm * noise) / divisor)
    return np.stack(rows)


@pytest.mark.parametrize("physical", [None, 3], ids=["whole", "pieces"])
@pytest.mark.parametrize("mode", MODES)
def test_every_step_is_the_clipped_sum_and_the_noise(tmp_path, mode, physical):
    options, plan = MODES[mode], plan_for(clip_norm=CLIP, noise_std=0.05)
    engine, module, optimizer, criterion, loader = private(tmp_path, plan, lr=0.0, momentum=0.0, **options)
    gradients = record(optimizer)
    train(module, optimizer, criterion, loader, 3, physical)
    divisor = 1 if options.get("loss_reduction") == "sum" else 10
    expected = expected_gradients(engine, plan, "clipping" in options, divisor)
    assert torch.stack(gradients).numpy() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert engine.report().guarantee.value == plan.guarantee.value
    engine.close()


@pytest.mark.parametrize("mode", ["hooks", "ghost", "per layer", "ew"])
@pytest.mark.parametrize("options", [{}, {"physical": 1}], ids=["whole", "pieces"])
def test_steps_without_examples_get_noise_and_no_forward_pass(tmp_path, mode, options):
    engine, module, optimizer, criterion, loader = private(tmp_path, SPARSE, lr=0.0, momentum=0.0, **MODES[mode])
    sizes = [len(engine.noise.batch(step).indices) for step in range(STEPS)]
    assert sizes.count(0) >= 2
    forwards, gradients = [], record(optimizer)
    module.register_forward_hook(lambda *_: forwards.append(1))
    train(module, optimizer, criterion, loader, 1, **options)
    assert len(forwards) == sum(min(size, 1) if not options else size for size in sizes)
    expected = expected_gradients(engine, SPARSE, mode == "per layer", divisor=EXAMPLES * 0.03)
    assert torch.stack(gradients).numpy() == pytest.approx(expected, rel=1e-4, abs=1e-4)
    engine.close()


def test_nothing_but_empty_batches(tmp_path):
    plan = plan_for(ap.strategies.Identity(STEPS), ap.Poisson(1e-9))
    engine, *rest = private(tmp_path, plan)
    for _ in rest[-1]:
        pytest.fail("there is no example")
    assert engine.report().steps_run == STEPS
    with pytest.raises(ap.Refused, match="has ended"):
        next(iter(rest[-1]))
    engine.close()


def test_pieces_change_nothing(tmp_path):
    whole, _ = run(tmp_path / "whole", plan_for())
    pieces, _ = run(tmp_path / "pieces", plan_for(), physical=3)
    assert pieces.numpy() == pytest.approx(whole.numpy(), rel=1e-4, abs=1e-5)


def test_epochs_follow_the_steps(tmp_path):
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for())
    assert (len(loader), engine.epoch) == (4, 0)
    train(module, optimizer, criterion, loader, 2)
    assert (engine.step, engine.epoch) == (8, 2)
    train(module, optimizer, criterion, loader, 1)
    with pytest.raises(ap.Refused, match="has ended"):
        train(module, optimizer, criterion, loader, 1)
    engine.close()


def test_stopped_early_the_report_says_so(tmp_path):
    plan = plan_for()
    engine, module, optimizer, criterion, loader = private(tmp_path, plan)
    train(module, optimizer, criterion, loader, 1)
    report = engine.report()
    assert report.guarantee.value == ap.epsilon(plan.mechanism.first(4), 1e-6).value
    assert any("Stopped after 4 of 12" in remark for remark in report.remarks)
    engine.close()


@pytest.fixture
def parts(tmp_path):
    made = private(tmp_path, plan_for(clip_norm=CLIP))
    yield made
    made[0].close()


@pytest.fixture
def ghost(tmp_path):
    made = private(tmp_path, plan_for(clip_norm=CLIP), grad_sample_mode="ghost")
    yield made
    made[0].close()


def backward(module, criterion, batch):
    criterion(module(batch[0]), batch[1]).backward()


def test_other_data_are_noticed(parts):
    _, module, optimizer, criterion, _ = parts
    backward(module, criterion, data()[:10])
    with pytest.raises(ap.Refused, match="not from the private data loader"):
        optimizer.step()


@pytest.mark.parametrize("made", ["parts", "ghost"])
def test_examples_left_out_or_used_twice_are_noticed(made, request):
    engine, module, optimizer, criterion, loader = request.getfixturevalue(made)
    x, y = next(iter(loader))
    for index in ([0, 1], [*range(10), 3]):
        optimizer.zero_grad()
        backward(module, criterion, (x[index], y[index]))
        with pytest.raises(ap.Refused, match="clipped gradients were summed"):
            optimizer.step()
        engine.load_state_dict(engine.state_dict())
        next(iter(loader))


def test_gradients_of_two_batches_in_one_step_are_noticed(parts):
    _, module, optimizer, criterion, loader = parts
    x, y = next(iter(loader))
    backward(module, criterion, (x[:5], y[:5]))
    module.allow_grad_accumulation()  # or Opacus itself raises here
    backward(module, criterion, (x[5:], y[5:]))
    with pytest.raises(ap.Refused, match=r"backward was called 2 times for one step: '0\.weight'"):
        optimizer.step()


def test_a_step_without_backward_is_noticed(parts):
    _, _, optimizer, _, loader = parts
    next(iter(loader))
    optimizer.zero_grad()
    with pytest.raises(ap.Refused, match="backward was not called"):
        optimizer.step()


def test_gradients_not_cleared_are_noticed(parts):
    _, module, optimizer, criterion, loader = parts
    batches = iter(loader)
    backward(module, criterion, next(batches))
    optimizer.step()
    with pytest.raises(ap.Refused, match=r"'2\.weight' still has them"):
        backward(module, criterion, next(batches))


def test_unclipped_gradients_are_noticed(ghost):
    _, module, optimizer, _, loader = ghost
    x, y = next(iter(loader))
    nn.functional.cross_entropy(module(x), y).backward()
    with pytest.raises(ap.Refused, match="not clipped"):
        optimizer.step()


def test_noise_twice_in_a_step_is_refused(parts):
    _, module, optimizer, criterion, loader = parts
    backward(module, criterion, next(iter(loader)))
    assert optimizer.pre_step()
    with pytest.raises(ap.Refused, match="already been added"):
        optimizer.add_noise()


def test_noise_and_clipping_cannot_be_scheduled(parts):
    _, _, optimizer, _, _ = parts
    with pytest.raises(ap.Refused, match="noise_multiplier"):
        ExponentialNoise(optimizer, gamma=0.9).step()
    for name in ("max_grad_norm", "expected_batch_size", "loss_reduction", "secure_mode", "generator"):
        with pytest.raises(ap.Refused, match=name):
            setattr(optimizer, name, None)


def test_clipping_norms_cannot_drift(ghost):
    _, module, optimizer, criterion, loader = ghost
    backward(module, criterion, next(iter(loader)))
    module.max_grad_norm = 2 * CLIP
    with pytest.raises(ap.Refused, match="clipping norms were changed"):
        optimizer.step()


def test_parameters_frozen_later_are_noticed(parts):
    _, module, optimizer, criterion, loader = parts
    backward(module, criterion, next(iter(loader)))
    next(module.parameters()).requires_grad = False
    with pytest.raises(ap.Refused, match="trained parameters are not the ones"):
        optimizer.step()


REFUSED = ["data_loader", "noise_multiplier", "max_grad_norm", "poisson_sampling", "noise_generator", "secure_mode"]


@pytest.mark.parametrize("name", [*REFUSED, "target_epsilon", "epochs", "expected_batch_size", "unheard_of"])
def test_options_of_opacus_that_the_plan_decides(tmp_path, name):
    with pytest.raises(ap.InvalidArgument, match=name):
        private(tmp_path, plan_for(), **{name: 2.0})
    with pytest.raises(ap.InvalidArgument, match=name):
        antiphase.torch.PrivacyEngine(tmp_path, **{name: 1})
    assert not any(tmp_path.iterdir())


def test_a_clipping_norm_other_than_the_plans_is_refused(tmp_path):
    plan = plan_for()
    with pytest.raises(ap.InvalidArgument, match=r"max_grad_norm.*the clipping norm of the plan, [0-9.]+\. Got"):
        private(tmp_path, plan, max_grad_norm=0.5 * plan.problem.clip_norm)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"clipping": "adaptive"}, "adaptive"),
        ({"grad_sample_mode": "no_op"}, "grad_sample_mode"),
        ({"grad_sample_mode": "ghost_fsdp"}, "cannot be used with a Sequential"),
        ({"grad_sample_mode": "ghost", "clipping": "per_layer"}, "ghost"),
        ({"loss_reduction": "none"}, "loss_reduction"),
        ({"clip_norms": [1.0]}, "flat"),
        ({"clipping": "per_layer", "clip_norms": [1.0, 0.1, 0.1, 0.1]}, "root sum of squares"),
        ({"loader_options": {"batch_size": 5}}, "batch_size"),
        ({"loader_options": {"shuffle": True}}, "shuffle"),
        ({"dataset": data(39)}, "made for 40 examples"),
        ({"dataset": torch.utils.data.DataLoader(data())}, "loader.dataset"),
        ({"dataset": iter([1])}, "length"),
        ({"module": nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)}, "averages"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_what_is_not_proved_is_refused_before_a_run_is_made(tmp_path, options, match):
    if "module" in options:
        nn.Module.__init__(options["module"])
        options["module"].weight = nn.Parameter(torch.zeros(1))
    with pytest.raises(ap.InvalidArgument, match=match):
        private(tmp_path, plan_for(), **options)
    assert not any(tmp_path.iterdir())


def test_what_fails_later_lets_the_directory_go(tmp_path):
    with pytest.raises(TypeError):
        private(tmp_path, plan_for(), loader_options={"colour": 1})
    engine, *_ = private(tmp_path, plan_for())
    with pytest.raises(ap.Refused, match="already has a run"):
        engine.make_private(network(), torch.optim.SGD(network().parameters()), data(), plan_for())
    engine.close()


def test_given_layer_norms_are_used(tmp_path):
    norms = [0.3, 0.2, 0.3, 0.1]
    engine, _, optimizer, _, _ = private(tmp_path, plan_for(clip_norm=CLIP), clipping="per_layer", clip_norms=norms)
    assert optimizer.max_grad_norms == norms
    engine.close()


@pytest.mark.parametrize(
    "participation",
    [
        ap.EveryStep(),
        ap.SingleParticipation(),
        ap.FixedEpochs(3, 4),
        ap.ShuffledEpochs(3, 4),
        ap.MinSeparation(4),
        ap.Poisson(0.2),
        ap.CyclicPoisson(4, 0.6),
        ap.FixedSize(2, 7),
        ap.BallsInBins(3, 4),
        ap.PoissonMinSeparation(4, 0.5, warm_start=True),
    ],
    ids=lambda p: type(p).__name__,
)
def test_the_mean_is_over_the_samplers_own_average(participation):
    examples, steps = 2000, 12
    problem = ap.Problem(steps=steps, budget=ap.Budget(1.0, 1e-6), participation=participation)
    mechanism = ap.Mechanism(ap.strategies.Identity(steps), participation, 1.0)
    plan = ap.Plan(problem, mechanism, ap.Bound(1.0, "upper", "", ""), error=1.0)
    sampler = participation.sampler(examples, steps, SECRET)
    sizes = [sampler.batch(step).mask.sum() for step in range(steps)]
    assert batch_size(plan, examples) == pytest.approx(np.mean(sizes), rel=0.1)


def test_the_plans_batch_size_goes_first():
    assert batch_size(plan_for(batch_size=7), 40) == 7.0


def test_manager_and_loader_share_the_epoch(parts):
    engine, module, optimizer, criterion, loader = parts
    train(module, optimizer, criterion, loader, 1)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=4, optimizer=optimizer) as pieces:
        for batch in pieces:
            optimizer.zero_grad()
            backward(module, criterion, batch)
            optimizer.step()
    assert (engine.step, engine.epoch) == (8, 2)


def test_learning_rate_schedulers_work(parts):
    _, module, optimizer, criterion, loader = parts
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    train(module, optimizer, criterion, loader, 1)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
