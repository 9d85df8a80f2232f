"""Ways in which earlier versions released a sum, noise or ledger that the guarantee did not cover."""

import shutil
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import antiphase as ap
import antiphase.torch
from antiphase._durable import DirectoryLock
from antiphase.torch import NoiseAdder
from tests.torch.training import HOOKS, SECRET, STEPS, data, network, pieces, plan_for, private, record, train

pytestmark = [pytest.mark.filterwarnings(HOOKS), pytest.mark.usefixtures("same_run_id")]
# A plan with so little noise that a recorded gradient is the sum itself.
QUIET = {"strategy": ap.strategies.Identity(STEPS), "noise_std": 1e-6}
BOTH = pytest.mark.parametrize("mode", ["hooks", "ghost"])


class Stop(Exception):
    pass


def take(noise, weight, gradient):
    weight.grad = torch.full((3,), gradient)
    noise.add()
    noise.commit()
    with torch.no_grad():
        weight.sub_(weight.grad)


def test_a_checkpoint_of_withdrawn_steps_is_refused(tmp_path):
    weight = torch.zeros(3, requires_grad=True)

    def branch(gradient):
        noise.restart()
        weight.data.zero_()
        for _ in range(3):
            take(noise, weight, gradient)
        return noise.state_dict()

    with NoiseAdder([weight], plan_for(), tmp_path, secret=SECRET) as noise:
        first = branch(1.0)
        noise.load_state_dict(first)
        second = branch(5.0)
        noise.publish("second")
        with pytest.raises(ap.Refused, match="were replaced later"):
            noise.load_state_dict(first)
        with pytest.raises(ap.Refused, match="were replaced later"):
            noise.load_state_dict({key: first[key] for key in ("run_id", "step")})
        noise.load_state_dict(second)
        take(noise, weight, 1.0)
        noise.load_state_dict(second)
    with NoiseAdder([weight], plan_for(), tmp_path, secret=SECRET) as noise:
        with pytest.raises(ap.Refused, match="were replaced later"):
            noise.load_state_dict(first)
        noise.load_state_dict(second)


def test_a_rewind_shortens_what_can_be_loaded(tmp_path):
    weight = torch.zeros(3, requires_grad=True)
    with NoiseAdder([weight], plan_for(), tmp_path, secret=SECRET) as noise:
        for _ in range(3):
            take(noise, weight, 1.0)
        third = noise.state_dict()
        noise.restart()
        weight.data.zero_()
        take(noise, weight, 5.0)
        with pytest.raises(ap.Refused, match="the ledger has 1 steps"):
            noise.load_state_dict(third)


@pytest.mark.parametrize("back", [0, 2])
def test_a_model_is_not_given_the_same_noise_twice(tmp_path, back):
    weight = torch.zeros(3, requires_grad=True)
    with NoiseAdder([weight], plan_for(), tmp_path, secret=SECRET) as noise:
        states = []
        for _ in range(4):
            states.append((noise.state_dict(), weight.detach().clone()))
            take(noise, weight, 1.0)
        state, before = states[back]
        noise.load_state_dict(state) if back else noise.restart()
        words = "differ from those in the checkpoint" if back else "started with different parameters"
        moved = weight.detach().clone()
        if back:
            noise.load_state_dict(noise.state_dict())  # makes the model as it is now no better
        with pytest.raises(ap.Refused, match=words):
            take(noise, weight, 5.0)
        assert torch.equal(weight, moved)
        noise.load_state_dict(state)
        weight.data.copy_(before)
        take(noise, weight, 1.0)
        assert noise.report().rewinds == 1  # the output that was refused
        take(noise, weight, 5.0)
        assert (noise.report().rewinds, noise.report().steps_run) == (2, back + 2)
        noise.load_state_dict(noise.state_dict())  # nothing is taken again: any model will do
        weight.data.zero_()
        take(noise, weight, 1.0)


def test_norms_of_a_pass_broken_off_clip_no_other_batch(tmp_path):
    class Fails(nn.Module):
        passes, at = 0, None

        def forward(self, hidden):
            if hidden.requires_grad:
                hidden.register_hook(self.count)
            return hidden

        def count(self, _):
            self.passes += 1
            if self.passes == self.at:
                raise Stop

    fails, dataset = Fails(), data()
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), fails, nn.Linear(5, 3))
    plan = plan_for(**QUIET, batch_size=10)
    options = {"grad_sample_mode": "ghost", "loss_reduction": "sum", "lr": 0.0}
    engine, module, optimizer, criterion, loader = private(tmp_path, plan, module, dataset=dataset, **options)
    loud, quiet = (torch.tensor(engine.noise.batch(step).indices) for step in range(2))
    dataset.tensors[0][loud] *= 1000
    dataset.tensors[0][quiet] *= 1e-3
    gradients, state = record(optimizer), engine.state_dict()
    fails.at = 2  # in the second step
    with pytest.raises(Stop):
        train(module, optimizer, criterion, loader, 1)
    engine.load_state_dict(state)
    train(module, optimizer, criterion, loader, 1)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-4)
    assert gradients[1].norm() <= 10 + 1e-3
    engine.close()


@BOTH
@pytest.mark.parametrize("way", ["again", "rewind"])
def test_pieces_of_a_batch_broken_off_are_dropped(tmp_path, mode, way):
    plan = plan_for(**QUIET, batch_size=10)
    sums = {}
    for name in ("steady", "broken"):
        options = {"grad_sample_mode": mode, "loss_reduction": "sum", "lr": 0.0}
        engine, module, optimizer, criterion, loader = private(tmp_path / name, plan, **options)
        gradients, state = record(optimizer), engine.state_dict()

        def one_step(stop, engine=engine, module=module, optimizer=optimizer, criterion=criterion, loader=loader):
            with pieces(loader, optimizer, 5) as batches:
                for i, (x, y) in enumerate(batches):
                    optimizer.zero_grad()
                    if i == stop:
                        raise Stop
                    criterion(module(x), y).backward()
                    optimizer.step()
                    if engine.step == 1:
                        return

        if name == "broken":
            with pytest.raises(Stop):
                one_step(1)
            if way == "rewind":
                engine.load_state_dict(state)
        one_step(None)
        sums[name] = gradients[0]
        engine.close()
    assert torch.allclose(sums["steady"], sums["broken"], atol=1e-4)


class Breaks(nn.Module):
    """Raises an exception once, in a forward or a backward pass."""

    def __init__(self, where, at):
        super().__init__()
        self.where, self.left = where, at

    def forward(self, hidden):
        if self.where == "forward":
            self.count()
        elif hidden.requires_grad:
            hidden.register_hook(self.count)
        return hidden

    def count(self, *_):
        self.left -= 1
        if self.left == 0:
            raise Stop


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost"])
def test_training_goes_on_after_a_pass_that_was_broken_off(tmp_path, mode, where):
    plan, sums = plan_for(**QUIET, batch_size=10), {}
    for name in ("steady", "broken"):
        plain = network()
        at = 0 if name == "steady" else 2
        module = nn.Sequential(plain[0], plain[1], Breaks(where, at), plain[2])
        options = {"grad_sample_mode": mode, "loss_reduction": "sum", "lr": 0.0}
        engine, *rest = private(tmp_path / name, plan, module, **options)
        gradients = record(rest[1])
        if name == "broken":
            with pytest.raises(Stop):
                train(*rest, 1)
            assert engine.step == 1
        train(*rest, 1)
        sums[name] = gradients[:4]
        engine.close()
    assert torch.allclose(torch.stack(sums["steady"]), torch.stack(sums["broken"]), atol=1e-4)


def test_layers_whose_ghost_norms_are_wrong(tmp_path):
    bag = nn.Sequential(nn.EmbeddingBag(10, 3))
    tokens = TensorDataset(torch.zeros(40, 5, dtype=torch.long), torch.zeros(40, dtype=torch.long))
    with pytest.raises(ap.InvalidArgument, match="EmbeddingBag"):
        private(tmp_path, plan_for(), bag, dataset=tokens, grad_sample_mode="ghost")
    images = TensorDataset(torch.zeros(40, 1, 4, 4), torch.zeros(40, dtype=torch.long))
    for padding in ("circular", "reflect", "replicate", "zeros"):
        conv = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1, padding_mode=padding), nn.Flatten())
        if padding == "zeros":
            private(tmp_path, plan_for(), conv, dataset=images, grad_sample_mode="ghost")[0].close()
        else:
            with pytest.raises(ap.InvalidArgument, match="Ghost clipping would compute wrong"):
                private(tmp_path, plan_for(), conv, dataset=images, grad_sample_mode="ghost")


class UsesItsWeightAgain(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    def forward(self, tokens):
        return functional.linear(self.embedding(tokens).mean(1), self.embedding.weight)


class Penalty(nn.Module):
    reduction = "mean"

    def __init__(self, weight):
        super().__init__()
        object.__setattr__(self, "weight", weight)

    def forward(self, output, target):
        return functional.cross_entropy(output, target, reduction=self.reduction) + self.weight.pow(2).sum()


def test_a_weight_used_outside_its_layer_is_not_clipped_by_ghost_norms(tmp_path):
    tokens = TensorDataset(torch.zeros(40, 5, dtype=torch.long), torch.zeros(40, dtype=torch.long))
    linear = network()
    normed = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3))
    cases = {
        "tied": (UsesItsWeightAgain(), tokens, None),
        "penalty": (linear, data(), Penalty(linear[0].weight)),
        "penalty on a layer whose gradients are made": (normed, data(), Penalty(normed[0].weight)),
    }
    for name, (plain, dataset, loss) in cases.items():
        options = {"dataset": dataset, "criterion": loss, "grad_sample_mode": "ghost"}
        engine, module, _, criterion, loader = private(tmp_path / name, plan_for(), plain, **options)
        x, y = next(iter(loader))
        with pytest.raises(ap.Refused, match="outside its layer"):
            criterion(module(x), y).backward()
        engine.close()


def test_layers_used_as_they_should_be_are_let_through(tmp_path):
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.wide, self.norm = nn.Embedding(10, 6), nn.Linear(6, 6), nn.LayerNorm(6)
            self.conv, self.group = nn.Conv1d(6, 6, 3), nn.GroupNorm(2, 6)
            self.instance, self.root = nn.InstanceNorm1d(6, affine=True), nn.RMSNorm(6)
            self.out = nn.Linear(6, 3)

        def forward(self, tokens):
            hidden = self.norm(self.norm(self.wide(self.embedding(tokens))))
            hidden = self.instance(self.group(self.conv(hidden.mT))).mT
            return self.out(self.root(hidden)[:, -1])

    tokens = TensorDataset(torch.arange(200).view(40, 5) % 10, torch.zeros(40, dtype=torch.long))
    made = private(tmp_path, plan_for(), Layers(), dataset=tokens, grad_sample_mode="ghost")
    train(*made[1:], 1)
    assert made[0].step == 4
    made[0].close()


@pytest.mark.parametrize("participation", [ap.MinSeparation(4), ap.Poisson(0.001)], ids=["dense", "empty"])
def test_old_gradients_of_frozen_parameters_move_nothing(tmp_path, participation):
    module, dataset = network(), data()
    functional.cross_entropy(module(dataset.tensors[0]), dataset.tensors[1]).backward()
    module[0].requires_grad_(False)
    before = module[0].weight.detach().clone()
    plan = plan_for(ap.strategies.Identity(STEPS), participation)
    engine, wrapped, optimizer, criterion, loader = private(tmp_path, plan, module, momentum=0.0)
    for x, y in loader:
        criterion(wrapped(x), y).backward()  # zero_grad comes after the first step
        optimizer.step()
        optimizer.zero_grad()
    assert engine.step > 0
    assert torch.equal(module[0].weight, before)
    engine.close()


def test_the_noise_state_of_another_run_is_not_used(tmp_path, monkeypatch):
    states = {}
    for name in "ab":
        monkeypatch.setattr("antiphase._run.opening.fresh_run_id", lambda name=name: name * 32)
        weight = torch.zeros(3, requires_grad=True)
        with NoiseAdder([weight], plan_for(), tmp_path / name, secret=SECRET) as noise:
            for _ in range(3):
                take(noise, weight, 0.0)
            states[name] = noise.state_dict()
    shutil.copytree(tmp_path / "b", tmp_path / "untouched")
    (source,), (target,) = (list((tmp_path / name / "private").glob("shard-*")) for name in "ab")
    shutil.copytree(source, target, dirs_exist_ok=True)
    start, added = weight.detach().clone(), []
    for name, warning in (("untouched", nullcontext()), ("b", pytest.warns(RuntimeWarning, match="another run"))):
        weight.data.copy_(start)
        with NoiseAdder([weight], plan_for(), tmp_path / name, secret=SECRET) as noise:
            noise.load_state_dict(states["b"])
            with warning:
                take(noise, weight, 0.0)
        added.append(weight.grad)
    assert torch.equal(*added)


def test_a_closed_run_is_free_while_workers_live(tmp_path):
    context = torch.multiprocessing.get_context("fork")
    lock, end = DirectoryLock(tmp_path), context.Event()
    worker = context.Process(target=end.wait, daemon=True)
    worker.start()
    try:
        with pytest.raises(ap.Refused, match="Another live process"):
            DirectoryLock(tmp_path)
        lock.release()
        DirectoryLock(tmp_path).release()
        assert worker.is_alive()
    finally:
        end.set()
        worker.join()


def test_a_forked_copy_does_not_free_the_run(tmp_path):
    context = torch.multiprocessing.get_context("fork")
    lock = DirectoryLock(tmp_path)
    worker = context.Process(target=lock.release)
    worker.start()
    worker.join()
    with pytest.raises(ap.Refused, match="Another live process"):
        DirectoryLock(tmp_path)
    lock.release()


def test_the_report_says_that_seeds_on_a_processor_are_short(tmp_path):
    with NoiseAdder([torch.zeros(4)], plan_for(), tmp_path, secret=SECRET, source="device") as noise:
        assert any("seeds of 32 bits" in remark for remark in noise.report().remarks)
