"""Lower precision: an example's contribution stays within the clipping norm, or the step is refused."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import TensorDataset

import antiphase as ap
from antiphase.torch import NoiseAdder
from tests.torch.training import HOOKS, STEPS, plan_for, private

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
    """What was summed in each step, before noise."""
    found, right = [], NoiseAdder._add_for_engine

    def add(self):
        found.append(torch.cat([p.grad.detach().flatten().double() for p in self.parameters]))
        right(self)

    monkeypatch.setattr(NoiseAdder, "_add_for_engine", add)
    return found


def train_rounded(directory, mode, examples, *, inside=False, **options):
    """With autocast around the forward pass, or around everything; per-example gradients of each step as they were."""
    plan = plan_for(examples=examples, clip_norm=1.0)
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


class Layers(nn.Module):
    """One layer for every way in which ghost clipping finds gradients; goes to a lower precision by itself if asked."""

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
