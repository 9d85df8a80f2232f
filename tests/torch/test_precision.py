"""In lower precision, the contribution of an example stays within the clipping norm, or the step is refused."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import TensorDataset

import antiphase as ap
from antiphase.torch import NoiseAdder
from tests.torch.training import HOOKS, STEPS, data, network, plan_for, private

pytestmark = [pytest.mark.filterwarnings(HOOKS), pytest.mark.usefixtures("same_run_id")]
LOW = torch.bfloat16


def big_data(examples):
    generator = torch.Generator().manual_seed(4)
    return TensorDataset(100 * torch.randn(examples, 6, generator=generator), torch.arange(examples) % 3)


def big_network():
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(6, 300), nn.Linear(300, 3))


@pytest.fixture
def sums(monkeypatch):
    """A list that receives the sum of each step before noise is added."""
    found, right = [], NoiseAdder._add_for_engine

    def add(self):
        found.append(torch.cat([p.grad.detach().flatten().double() for p in self.parameters]))
        right(self)

    monkeypatch.setattr(NoiseAdder, "_add_for_engine", add)
    return found


def train_rounded(directory, mode, examples, *, inside=False, **options):
    """Train with autocast around the forward pass, or with `inside` around the whole step.

    With `inside`, returns the per-example gradients of each step before clipping.
    """
    plan = plan_for(examples=examples, clip_norm=1.0)
    options = {"loss_reduction": "sum", **options}
    made = private(directory, plan, big_network(), 0.0, 0.0, big_data(examples), grad_sample_mode=mode, **options)
    engine, module, optimizer, criterion, loader = made
    given = []
    for _ in range(-(-STEPS // len(loader))):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=LOW):
                loss = criterion(module(x), y)
                if inside:
                    loss.backward()
                    given.append([p.grad_sample.double() for p in optimizer.params])
                    optimizer.step()
            if not inside:
                loss.backward()
                optimizer.step()
    engine.close()
    return given


@pytest.mark.parametrize("clipping", ["flat", "per_layer"])
@pytest.mark.parametrize("mode", ["hooks", "functorch"])  # "ew" raises under autocast
def test_one_example_stays_within_the_clipping_norm_under_autocast(tmp_path, sums, mode, clipping):
    """Before norms were taken in full precision this was up to 1.003."""
    train_rounded(tmp_path, mode, 4, clipping=clipping)
    norms = torch.stack(sums).norm(dim=1)
    assert len(norms) == STEPS
    assert norms.max() <= 1 + 1e-6
    assert norms.max() > 0.99


def test_the_sum_is_not_rounded_where_the_step_is_taken_under_autocast(tmp_path, sums):
    given = train_rounded(tmp_path, "hooks", 40, inside=True)
    for samples, found in zip(given, sums, strict=True):
        rows = torch.cat([sample.flatten(1) for sample in samples], 1)
        expected = (rows * (1 / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
        assert (found - expected).norm() < 1e-5 * expected.norm()


def test_ghost_clipping_under_autocast_stays_within_the_clipping_norm(tmp_path, sums):
    """Norms and sums are computed in float32 from the same rounded inputs and gradients."""
    train_rounded(tmp_path, "ghost", 4)
    norms = torch.stack(sums).norm(dim=1)
    assert len(norms) == STEPS
    assert norms.max() <= 1 + 1e-6
    assert norms.max() > 0.99
    assert all(found.float().double().equal(found) for found in sums)


def equal_data(examples):
    generator = torch.Generator().manual_seed(4)
    x = 3 * torch.randn(1, 20, generator=generator)
    return TensorDataset(x.expand(examples, -1), torch.zeros(examples, dtype=torch.long))


def smooth_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(20, 12), nn.GELU(), nn.Linear(12, 10))


def equal_plan(examples):
    """Return a plan for one step with all examples."""
    return plan_for(ap.strategies.Identity(1), ap.EveryStep(), clip_norm=0.5, examples=examples, batch_size=examples)


MANY = 1025


@pytest.mark.parametrize(("mode", "reduction"), [("ghost", "mean"), ("ghost", "sum"), ("hooks", "sum")])
def test_one_of_many_equal_examples_under_autocast(tmp_path, sums, mode, reduction):
    """Rounding errors must not depend on the number of examples: with a mean, the sums differed by 2 clipping norms."""
    for examples in (MANY - 1, MANY):
        dataset, directory = equal_data(examples), tmp_path / str(examples)
        options = {"dataset": dataset, "grad_sample_mode": mode, "loss_reduction": reduction}
        engine, module, optimizer, criterion, loader = private(
            directory, equal_plan(examples), smooth_network(), **options
        )
        for x, y in loader:
            with torch.autocast("cpu", dtype=LOW):
                loss = criterion(module(x), y)
            loss.backward()
            optimizer.step()
        engine.close()
    assert (sums[1] - sums[0]).norm() == pytest.approx(0.5, rel=1e-3)


class Frozen(nn.Module):
    """A frozen layer of low precision above or below a trained one."""

    def __init__(self, above):
        super().__init__()
        self.above, self.trained, self.last = above, nn.Linear(6, 6), nn.Linear(6, 3)
        self.frozen = nn.Linear(6, 6).to(LOW).requires_grad_(False)

    def forward(self, x):
        if self.above:
            return self.last(self.frozen(self.trained(x).to(LOW)).float())
        return self.last(self.trained(self.frozen(x.to(LOW)).float()))


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew"])
def test_the_mean_of_rounded_losses_is_refused(tmp_path, mode, monkeypatch):
    """Otherwise, one of a thousand equal examples changes the sum by three clipping norms in bfloat16."""
    x = data().tensors[0]

    def losses(name, module, enabled=False, plan=None, **options):
        made = private(tmp_path / name, plan or plan_for(), module, grad_sample_mode=mode, **options)
        with made[0], torch.autocast("cpu", dtype=LOW, enabled=enabled):
            made[1](x[:4])

    with pytest.raises(ap.Refused, match="mean over the batch"):
        losses("autocast", network(), enabled=True)
    with pytest.raises(ap.Refused, match="mean over the batch"):
        losses("frozen above", Frozen(above=True))
    losses("frozen below", Frozen(above=False))
    if mode != "ew":  # which cannot be used under autocast
        losses("sum", network(), enabled=True, loss_reduction="sum")
        problem = ap.Problem(12, ap.Budget(8.0, 1e-6), examples=40, participation=ap.EveryStep(), adjacency="replace")
        losses("replace", network(), enabled=True, plan=ap.plan(problem, families=["identity"]))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    with pytest.raises(ap.Refused, match="mean over the batch"):
        losses("products", network())
    losses("products, sum", network(), loss_reduction="sum")


class Cast(nn.Module):
    """Computes an activation in low precision, although no layer has an output of low precision."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.first(x).to(LOW).tanh().float())


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew"])
@pytest.mark.parametrize("where", ["model", "loss"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_casts_in_code_are_refused(tmp_path, monkeypatch, mode, where, kind):
    """In bfloat16 logits, one of 3,000 examples changed the sum by 2.5 clipping norms."""
    monkeypatch.setattr("tests.torch.test_precision.LOW", kind)
    module = Cast() if where == "model" else network()
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for(), module, grad_sample_mode=mode)

    def step():
        x, y = next(iter(loader))
        optimizer.zero_grad()
        criterion(module(x).to(kind).float() if where == "loss" else module(x), y).backward()
        optimizer.step()

    with engine:
        if kind is torch.float32:
            step()
            return
        with pytest.raises(ap.Refused, match="mean over the batch"):
            step()
        assert engine.step == 0


def test_whole_numbers_are_not_taken_for_rounded_ones(tmp_path):
    """A last layer of zeros and whole targets: with 10 examples (not a power of two) and with 8."""
    for examples in (40, 32):
        module = nn.Linear(6, 1)
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
        dataset = TensorDataset(torch.randn(examples, 6), torch.arange(examples) * 1.0)
        engine, module, optimizer, _, loader = private(
            tmp_path / str(examples), plan_for(examples=examples), module, dataset=dataset
        )
        with engine:
            x, y = next(iter(loader))
            nn.functional.mse_loss(module(x).flatten(), y).backward()
            optimizer.step()
            assert engine.step == 1


class Layers(nn.Module):
    """A model with one layer for every formula of ghost clipping. With `inside`, it uses autocast itself."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return x * self.scale

    def __init__(self, inside):
        super().__init__()
        self.inside = inside
        self.first, self.norm, self.own = nn.Linear(6, 6), nn.LayerNorm(6), self.Own()
        self.conv, self.group, self.last = nn.Conv1d(1, 2, 3), nn.GroupNorm(1, 2), nn.Linear(8, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=LOW, enabled=self.inside or torch.is_autocast_enabled("cpu")):
            hidden = self.own(self.norm(self.first(x)))
            return self.last(self.group(self.conv(hidden[:, None])).flatten(1)).float()


@pytest.mark.parametrize("inside", [False, True])
def test_ghost_clipping_under_autocast_is_close_to_full_precision(tmp_path, inside):
    found = []
    for low in (False, True):
        torch.manual_seed(0)
        module = Layers(inside and low)
        made = private(tmp_path / str(low), plan_for(), module, grad_sample_mode="ghost", loss_reduction="sum")
        engine, module, optimizer, criterion, loader = made
        x, y = next(iter(loader))
        with engine, torch.autocast("cpu", dtype=LOW, enabled=low and not inside):
            criterion(module(x), y).backward()
        assert all(p.grad.dtype == torch.float32 for p in optimizer.params)
        norms = module.per_sample_gradient_norms
        found.append((torch.cat([p.grad.flatten() for p in optimizer.params]), norms))
        assert torch.isfinite(norms).all()
    (full, _), (rounded, _) = found
    assert 0 < (full - rounded).norm() < 0.05 * full.norm()


def test_a_weight_used_again_is_found_under_autocast(tmp_path):
    """All uses of a weight share one copy in lower precision, which must not hide the second use."""

    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x):
            return nn.functional.linear(self.layer(x), self.layer.weight)

    engine, module, _, criterion, loader = private(tmp_path, plan_for(), Again(), grad_sample_mode="ghost")
    x, y = next(iter(loader))
    with torch.autocast("cpu", dtype=LOW):
        loss = criterion(module(x), y)
    with engine, pytest.raises(ap.Refused, match="outside its layer"):
        loss.backward()


def test_a_ghost_backward_pass_inside_autocast_is_in_full_precision(tmp_path):
    engine, module, optimizer, criterion, loader = private(tmp_path, plan_for(), grad_sample_mode="ghost")
    x, y = next(iter(loader))
    gradients = []
    for low in (False, True):
        optimizer.zero_grad()
        loss = criterion(module(x), y)
        with torch.autocast("cpu", dtype=LOW, enabled=low):
            loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in optimizer.params]))
    assert torch.equal(*gradients)
    engine.close()


def sharded(directory, **policy):
    module = big_network()
    for part in (*module, module):
        fully_shard(part, mp_policy=MixedPrecisionPolicy(**policy))
    return private(directory, plan_for(), module, grad_sample_mode="ghost_fsdp")


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("policy", [{"reduce_dtype": LOW}, {"param_dtype": LOW, "reduce_dtype": torch.float32}])
def test_mixed_precision_of_fsdp_is_refused(tmp_path, policy):
    with pytest.raises(ap.InvalidArgument, match="mixed precision"):
        sharded(tmp_path / "run", **policy)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("one_process")
def test_what_fsdp_sums_cannot_be_changed(tmp_path):
    engine, module, *_ = sharded(tmp_path / "run", param_dtype=torch.float32)
    with pytest.warns(DeprecationWarning, match="set_gradient_divide_factor"), pytest.raises(ap.Refused):
        module._module.set_reduce_scatter_divide_factor(0.01)
    for name in ("gradient_divide_factor", "requires_gradient_sync", "is_last_backward", "custom_reduce_scatter"):
        with pytest.raises(ap.Refused, match=name):
            getattr(module._module, f"set_{name}")(0)
    engine.close()
