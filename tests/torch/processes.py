"""Two processes that train one model, in several scenarios.

Run as a script, it writes the results of each rank: python -m tests.torch.processes <directory> short|long
"""

import multiprocessing
import os
import sys
import traceback
from pathlib import Path

import torch
import torch._dynamo  # loaded by the first optimizer; here, before the processes fork
import torch.distributed as dist
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from opacus.utils.fsdp_utils import FSDP2Wrapper

import antiphase as ap
import antiphase._run.opening
from antiphase.torch import NoiseAdder, _noise_adder
from tests.torch import statistics
from tests.torch.training import SECRET, data, lattice_plan_for, local, network, plan_for, private, record, run, train

WORLD = 2
MODE = {"ddp": {}, "fsdp": {"grad_sample_mode": "ghost_fsdp"}}
SPARSE = ap.Poisson(0.03)  # with 40 examples, a third of the batches is empty, and a third has one example

# name -> (plan, way to distribute the model, options). In "pieces", Opacus processes a batch in parts of 3 examples.
# Each scenario is trained by one process and by two.
SCENARIOS = {
    "flat": (plan_for(), "ddp", {}),
    "flat, sum": (plan_for(), "ddp", {"loss_reduction": "sum"}),
    "per layer": (plan_for(), "ddp", {"clipping": "per_layer"}),
    "ghost": (plan_for(clip_norm=0.5), "ddp", {"grad_sample_mode": "ghost"}),
    "flat, pieces": (plan_for(), "ddp", {"physical": 3}),
    "flat, empty": (plan_for(ap.strategies.Identity(12), SPARSE), "ddp", {}),
    "lattice": (lattice_plan_for(), "ddp", {}),
    "lattice, empty": (lattice_plan_for(ap.strategies.Identity(12), participation=SPARSE), "ddp", {}),
    "fsdp": (plan_for(clip_norm=0.5), "fsdp", {}),
    "fsdp, sum": (plan_for(), "fsdp", {"loss_reduction": "sum"}),
    "fsdp, pieces": (plan_for(), "fsdp", {"physical": 3}),
    "fsdp, empty": (plan_for(ap.strategies.Identity(12), SPARSE), "fsdp", {}),
}


def fix_run_id():
    """Give all runs the same id. Runs in different directories then have the same noise and batches."""
    antiphase._run.opening.fresh_run_id = lambda: "0" * 32


def shared(way, module):
    return DPDDP(module) if way == "ddp" else FSDP2Wrapper(module)


def scenario(directory, name):
    plan, way, options = SCENARIOS[name]
    return run(directory / name, plan, shared(way, network()), **{**MODE[way], **options})


def alone(directory, name):
    """Run the training of `scenario` in one process."""
    plan, way, options = SCENARIOS[name]
    mode = {"grad_sample_mode": "ghost"} if way == "fsdp" else {}
    return run(directory / name, plan, network(), **options, **mode)


def half(directory, module, epochs, **options):
    """Train for some epochs, and return the parameters. Starts from the checkpoint, or writes one if there is none."""
    engine, module, optimizer, criterion, loader = private(directory / "run", plan_for(), module, **options)
    checkpoint = directory / "checkpoint.pt"
    if checkpoint.exists():
        engine.load_state_dict(torch.load(checkpoint)["privacy"])
        for p, value in zip(optimizer.params, torch.load(checkpoint)["parameters"], strict=True):
            p.data.copy_(value)
    train(module, optimizer, criterion, loader, epochs)
    parameters, state = [local(p) for p in optimizer.params], engine.state_dict()
    engine.close()
    if not checkpoint.exists():
        torch.save({"parameters": parameters, "privacy": state}, checkpoint)
    return torch.cat([p.reshape(-1) for p in parameters])


def elastic(directory):
    """Continue with two processes the training that `begin_alone` started with one."""
    return half(directory / "elastic", DPDDP(network()), 2, momentum=0.0)


def long_noise(directory, way):
    """Return the noisy gradients of 500 steps with learning rate 0, from which the covariance is computed."""
    module, plan = shared(way, statistics.wide_network()), statistics.PLAN
    options = {"lr": 0.0, "momentum": 0.0, "dataset": statistics.wide_data(), **MODE[way]}
    engine, module, optimizer, criterion, loader = private(directory / way, plan, module, **options)
    gradients = record(optimizer)
    train(module, optimizer, criterion, loader, -(-plan.steps // len(loader)))
    engine.close()
    return torch.stack(gradients)


def one_rank_only(directory, rank, steps=40):
    """Simulate a mistake: rank 1 adds zeros instead of its part of the noise. Returns the gradients of all steps."""
    weight = torch.zeros(2000)
    right = _noise_adder.read_noise
    if rank == 1:
        _noise_adder.read_noise = lambda run, step: [0 * part for part in right(run, step)]
    rows = []
    with NoiseAdder([weight], statistics.PLAN, directory / "one", secret=SECRET) as noise:
        for _ in range(steps):
            weight.grad = None
            noise.add()
            dist.all_reduce(weight.grad)
            noise.commit()
            rows.append(weight.grad.clone())
    _noise_adder.read_noise = right
    return torch.stack(rows)


def told(act):
    """Return the message with which `act` was refused, or None."""
    try:
        act()
    except ap.Refused as refused:
        return str(refused)
    return None


def disagreement(directory, rank, name):
    """Take one step on both ranks, then a second step in which rank 1 does something else.

    Returns the message that this rank gets and the number of steps in the ledger. In "another output", the output
    disagrees with the ledger, which only rank 0 reads.
    """
    sharded = name == "another step, sharded"
    weights = list(FSDP2Wrapper(network()).parameters()) if sharded else [torch.zeros(8)]
    with NoiseAdder(weights, plan_for(), directory / name, secret=SECRET) as noise:
        first = noise.state_dict()

        def add():
            noise.add()
            for p in weights:
                if not sharded:
                    dist.all_reduce(p.grad)

        add()
        noise.commit()
        for p in weights:
            p.grad = None
        if name == "sums left out":
            noise.add()
        elif name == "another gradient":
            add()
            weights[0].grad += rank
        elif name == "another output":
            noise.publish("model")
            noise.load_state_dict(first)
            weights[0].grad = torch.full((8,), 1.0 + rank)
            add()
        else:
            if rank == 1:
                noise.load_state_dict(first)
            add()
        words = told(noise.commit)
        return words, noise.report().steps_run if rank == 0 else None


def summed_twice(directory, rank):
    """Simulate a mistake: gradients are summed over the ranks already before `add`.

    Returns the message that this rank gets, and the number of the next step.
    """
    weight = torch.zeros(8)
    with NoiseAdder([weight], plan_for(), directory / "twice", secret=SECRET) as noise:
        weight.grad = torch.full((8,), 1.0 + rank)
        dist.all_reduce(weight.grad)
        words = told(noise.add)
        weight.grad = torch.full((8,), 1.0 + rank)
        noise.add()
        dist.all_reduce(weight.grad)
        noise.commit()
        return words, noise.step


def other_source(directory, rank):
    """Return the message that this rank gets if rank 1 generates its part of the noise on the device."""
    source = "device" if rank == 1 else "host"
    return told(lambda: NoiseAdder([torch.zeros(8)], plan_for(), directory / "source", secret=SECRET, source=source))


def other(directory, rank, name):
    """Return the message that this rank gets if rank 1 was given other arguments."""
    plan, examples, size, reduction = OTHERS[name] if rank == 1 else (plan_for(), 40, 8, "mean")

    def begin():
        if name == "reduction":
            return private(directory / name, plan, DPDDP(network()), loss_reduction=reduction)
        return NoiseAdder([torch.zeros(size)], plan, directory / name, examples=examples, secret=SECRET)

    return told(begin)


def publications(directory, every):
    """Take three passes of four steps, and publish after every pass or step. In many steps, a rank has no examples.

    Returns the message with which this rank was refused (or None), the step after every pass, and the batch sizes.
    """
    plan = plan_for(ap.strategies.Identity(12), ap.Poisson(0.25), examples=4)
    made = private(directory / every, plan, DPDDP(network()), dataset=data(4))
    engine, module, optimizer, criterion, loader = made
    steps = []

    def passes():
        for _ in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                criterion(module(x), y).backward()
                optimizer.step()
                if every == "step":
                    engine.publish(f"step {engine.step}")
            steps.append(engine.step)
            if every == "pass":
                engine.publish(f"pass {len(steps)}")

    words = told(passes)
    sizes = [int(engine.noise.batch(t)[1].sum()) for t in range(plan.steps)]
    if words is None:
        engine.close()
    return words, steps, sizes


# what differs on rank 1 -> (plan, number of examples, number of model entries, reduction)
OTHERS = {
    "noise": (plan_for(noise_std=2.99), 40, 8, "mean"),
    "clipping norm": (plan_for(clip_norm=100.0), 40, 8, "mean"),
    "examples": (plan_for(), 41, 8, "mean"),
    "model": (plan_for(), 40, 9, "mean"),
    "reduction": (plan_for(), 40, 8, "sum"),
}
DISAGREEMENTS = ("sums left out", "another gradient", "another step", "another step, sharded", "another output")


def memory(directory):
    """Return the bytes of noise state on this rank, for a model whose tensors cannot be halved evenly."""
    weights = [torch.zeros(1001, 7), torch.zeros(13), torch.zeros(())]
    with NoiseAdder(weights, plan_for(), directory / "memory", secret=SECRET) as noise:
        noise.add()
        return noise.state_bytes


def short(directory, rank):
    results = {name: scenario(directory, name) for name in SCENARIOS}
    results["elastic"] = elastic(directory)
    results["one rank only"] = one_rank_only(directory, rank)
    results["memory"] = memory(directory)
    results["twice"] = summed_twice(directory, rank)
    results["source"] = other_source(directory, rank)
    results["others"] = {name: other(directory, rank, name) for name in OTHERS}
    results["publications"] = {every: publications(directory, every) for every in ("pass", "step")}
    results["told"] = {name: disagreement(directory, rank, name) for name in DISAGREEMENTS}
    return results


def long(directory, rank):
    return {way: long_noise(directory, way) for way in MODE}


def work(rank, directory, task):
    try:
        torch.set_num_threads(1)
        fix_run_id()
        store = dist.FileStore(str(directory / "store"), WORLD)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
        torch.save(task(directory, rank), directory / f"results-{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def begin_alone(directory):
    torch.set_num_threads(1)
    fix_run_id()
    (directory / "elastic").mkdir()
    half(directory / "elastic", network(), 1, momentum=0.0)


def main(directory, task):
    """Run the task in two processes. They are forked before anything has run, so that PyTorch is imported only once."""
    context = multiprocessing.get_context("fork")
    first = context.Process(target=begin_alone, args=(directory,))
    first.start()
    first.join()
    workers = [context.Process(target=work, args=(rank, directory, task)) for rank in range(WORLD)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(250)
    failed = [worker for worker in workers if worker.exitcode != 0]
    for worker in failed:
        worker.kill()
    sys.exit(bool(failed))


if __name__ == "__main__":
    main(Path(sys.argv[1]), {"short": short, "long": long}[sys.argv[2]])
