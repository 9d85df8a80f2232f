"""The data loader: every step gets its own batch, also if worker processes read ahead."""

import copy

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch.utils.data import ConcatDataset, Subset

import antiphase as ap
from tests.torch.training import HOOKS, STEPS, data, plan_for, private, run, train

pytestmark = [pytest.mark.filterwarnings(HOOKS), pytest.mark.usefixtures("same_run_id")]
WORKERS = {"num_workers": 2}
SPARSE = plan_for(ap.strategies.Identity(STEPS), ap.Poisson(0.03))


@pytest.fixture(params=[{}, WORKERS], ids=["alone", "workers"])
def parts(request, tmp_path):
    made = private(tmp_path, plan_for(), loader_options=request.param)
    yield made
    made[0].close()


def step(module, optimizer, criterion, batch):
    optimizer.zero_grad()
    criterion(module(batch[0]), batch[1]).backward()
    optimizer.step()


@pytest.mark.parametrize("plan", [plan_for(), SPARSE], ids=["dense", "sparse"])
def test_workers_change_nothing(tmp_path, plan):
    alone, _ = run(tmp_path / "alone", plan)
    helped, _ = run(tmp_path / "helped", plan, loader_options=WORKERS)
    assert torch.equal(alone, helped)


def test_a_skipped_batch_is_noticed(parts):
    _, module, optimizer, criterion, loader = parts
    batches = iter(loader)
    step(module, optimizer, criterion, next(batches))
    next(batches)
    with pytest.raises(ap.Refused, match="step 1 was not taken"):
        next(batches)


def test_a_batch_skipped_and_another_taken_in_its_place_are_noticed(parts):
    _, module, optimizer, criterion, loader = parts
    batches = iter(loader)
    step(module, optimizer, criterion, next(batches))
    step(module, optimizer, criterion, next(iter(loader)))
    step(module, optimizer, criterion, next(iter(loader)))
    with pytest.raises(ap.Refused, match="batch of step 1, but the next step is 3"):
        next(batches)


def test_going_on_after_a_rewind_needs_a_new_pass(parts):
    engine, module, optimizer, criterion, loader = parts
    state, weights, batches = engine.state_dict(), copy.deepcopy(module.state_dict()), iter(loader)
    for _ in range(2):
        step(module, optimizer, criterion, next(batches))
    engine.load_state_dict(state)
    module.load_state_dict(weights)
    with pytest.raises(ap.Refused, match="step 1 was not taken"):
        next(batches)
    train(module, optimizer, criterion, loader, 1)
    assert engine.step == 4


def test_a_pass_broken_off_goes_on_with_the_next_step(parts):
    engine, module, optimizer, criterion, loader = parts
    for batch in loader:
        step(module, optimizer, criterion, batch)
        if engine.step == 2:
            break
    train(module, optimizer, criterion, loader, 1)
    assert (engine.step, engine.epoch) == (8, 2)


def test_passes_broken_off_do_not_end_the_run(parts):
    """Every pass takes two of its four steps, as with Lightning's limit_train_batches."""
    engine, module, optimizer, criterion, loader = parts
    for _ in range(STEPS // 2):
        for batch in loader:
            step(module, optimizer, criterion, batch)
            if engine.step % 2 == 0:
                break
    assert engine.step == STEPS
    with pytest.raises(ap.Refused, match="The run has ended"):
        next(iter(loader))


def test_pieces_are_not_read_ahead(tmp_path):
    """What worker processes would do with BatchMemoryManager, whose loader is not ours."""
    engine, _, optimizer, _, loader = private(tmp_path, plan_for(), loader_options=WORKERS)
    pieces = iter(BatchSplittingSampler(sampler=loader.batch_sampler, max_batch_size=5, optimizer=optimizer))
    assert len(next(pieces) + next(pieces)) == 10
    with pytest.raises(ap.Refused, match="without worker processes"):
        next(pieces)
    engine.close()


def test_batches_out_of_order_are_refused(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="in_order"):
        private(tmp_path, plan_for(), loader_options={**WORKERS, "in_order": False})


def test_workers_that_two_passes_would_share_are_refused(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="epochs share workers"):
        private(tmp_path, plan_for(), loader_options={**WORKERS, "persistent_workers": True})


def test_data_sets_that_list_examples_several_times(tmp_path):
    once, message = data(20), "lists the same example of a TensorDataset several times"
    kinds = [Subset(once, [*range(20)] * 2), ConcatDataset([once, data(5), once])]
    kinds += [Subset(part, range(30)) for part in kinds]
    kinds += [Subset(once, [19, -1]), Subset(ConcatDataset([data(5), once, once]), [7, 27])]
    kinds += [ConcatDataset([once, Subset(once, [3, 5])])]  # oversampling of rare classes
    kinds += [ConcatDataset([Subset(once, range(12)), data(5), Subset(once, range(11, 20))])]
    for dataset in kinds:
        with pytest.raises(ap.InvalidArgument, match=message):
            private(tmp_path, plan_for(examples=len(dataset)), dataset=dataset)
    dataset = ConcatDataset([Subset(once, torch.arange(10)), data(5), Subset(once, [*range(10, 20)])])
    engine, *_ = private(tmp_path, plan_for(examples=25), dataset=dataset)
    engine.close()
    dataset = Subset(ConcatDataset([once, once]), [*range(10), *range(30, 40)])
    engine, *_ = private(tmp_path / "parts", plan_for(examples=20), dataset=dataset)
    engine.close()


def test_the_order_of_batches_cannot_be_changed_later(tmp_path):
    """If some examples load slowly, steps would get the batches of other steps."""
    engine, *_, loader = private(tmp_path, plan_for(), loader_options={"num_workers": 2})
    loader.in_order = False
    with engine, pytest.raises(ap.InvalidArgument, match="in_order"):
        next(iter(loader))
