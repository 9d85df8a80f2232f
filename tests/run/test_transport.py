"""Two ranks share one run. Rank 0 writes the ledger, both ranks learn its content, and no secret is sent."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import antiphase as ap
from antiphase._run import Transport, integration, open_shared
from tests.run.plans import STEPS, STRATEGIES, plan_for

SECRET = ap.Secret.insecure(7)
PLAN = plan_for(STRATEGIES["toeplitz"])
SIZE = 7
TIMEOUT = 60


class Threads(Transport):
    """A transport between ranks that are threads of one process. Messages are pickled, as between processes."""

    size = 2

    def __init__(self, rank, shared):
        self.rank, self._shared = rank, shared

    def broadcast(self, value):
        return self.all_gather(value)[0]

    def all_gather(self, value):
        data = pickle.dumps(value)
        self._shared.sent.append(data)
        self._shared.box[self.rank] = data
        self._shared.barrier.wait(TIMEOUT)
        found = [pickle.loads(data) for data in self._shared.box]
        self._shared.barrier.wait(TIMEOUT)
        return found


class Shared:
    def __init__(self):
        self.box, self.sent, self.barrier = [None, None], [], threading.Barrier(2)


def on_both(act):
    """Call `act(rank, transport)` on both ranks. Return what each rank returned or raised, and the messages."""
    shared = Shared()

    def guarded(rank):
        try:
            return act(rank, Threads(rank, shared))
        except ap.AntiphaseError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(guarded, range(2))), shared.sent


def opened(directory, rank, transport, plan=PLAN, secret=SECRET, **options):
    cut = SIZE // 2
    own = ap.Leaf((SIZE,), ((0, cut),) if rank == 0 else ((cut, SIZE),))
    leaves = {"leaves": {"0": ap.Leaf((SIZE,))}, "own_leaves": {"0": own}}
    return open_shared(plan, directory, transport, secret=secret, **leaves, **options)


def digest_of(step, seed=0):
    return bytes([step, seed]) * 16


def test_the_parts_of_two_ranks_are_the_noise_of_one_process(tmp_path):
    def train(rank, transport):
        with opened(tmp_path, rank, transport) as run:
            parts = []
            for step in range(STEPS):
                parts.append(run._unit_noise(step)[0])
                run.commit(step, digest_of(step))
            return run.run_id, parts

    ((run_id, first), (other_id, second)), _ = on_both(train)
    assert run_id == other_id
    stream = ap.NoiseStream(PLAN, [(SIZE,)], SECRET, run_id)
    for step in range(STEPS):
        np.testing.assert_array_equal(np.concatenate([first[step], second[step]]), stream.next()[0])


def test_every_rank_knows_what_rank_0_has_recorded(tmp_path):
    def train(rank, transport):
        with opened(tmp_path, rank, transport) as run:
            for step in range(4):
                run._unit_noise(step)
                run.commit(step, digest_of(step))
                if step == 1:
                    run.publish("first")
            run._unit_noise(2)
            run.commit(2, digest_of(2, seed=1))  # replaces steps 2 and 3
            run._unit_noise(3)
            integration.record_withdrawal(run, 3)
            run.publish("second")
            return run._journal.history, run.published, integration.outputs_digest(run, 3)

    with pytest.warns(RuntimeWarning, match="another one with the same noise"):
        (first, second), _ = on_both(train)
    assert first == second
    assert (first[0].committed, first[0].rewinds, first[1]) == (3, 2, 3)
    with ap.Run.open(PLAN, tmp_path, leaves={"0": ap.Leaf((SIZE,))}, secret=SECRET) as run:
        assert run._journal.history == first[0]


def test_what_rank_0_refuses_is_refused_on_every_rank(tmp_path):
    def train(rank, transport):
        with opened(tmp_path, rank, transport) as run:
            run._unit_noise(0)
            run.commit(0, digest_of(0))
            run.publish("model")
            run._unit_noise(0)
            with pytest.raises(ap.Refused) as refused:
                run.commit(0, digest_of(0, seed=1))
            return str(refused.value), run.committed

    ((first, steps), (second, other_steps)), _ = on_both(train)
    assert first.startswith("Step 0 was replayed with a different output")
    assert second.startswith("Rank 0 raised an error: Step 0 was replayed with a different output")
    assert (steps, other_steps) == (1, 1)


def test_a_directory_that_rank_0_cannot_open_stops_every_rank(tmp_path):
    ap.Run.open(PLAN, tmp_path, leaves=[(SIZE + 1,)], secret=SECRET).close()
    (first, second), _ = on_both(lambda rank, transport: opened(tmp_path, rank, transport))
    assert isinstance(first, ap.InvalidArgument)
    assert "was created for leaves" in str(first)
    assert str(second).startswith("Rank 0 raised an error: The run directory was created for leaves")


def test_ranks_with_different_plans_are_refused_before_anything_is_written(tmp_path):
    plans = [PLAN, plan_for(STRATEGIES["blt"])]
    results, _ = on_both(lambda rank, transport: opened(tmp_path / "run", rank, transport, plans[rank]))
    assert all("do not have the same plan" in str(error) for error in results)
    assert not (tmp_path / "run").exists()


def test_rank_0_alone_reports_and_every_rank_states_epsilon(tmp_path):
    def train(rank, transport):
        with opened(tmp_path, rank, transport) as run:
            run._unit_noise(0)
            run.commit(0, digest_of(0))
            epsilon = integration.epsilon_so_far(run, 1e-6)
            if rank == 0:
                return epsilon, run.report().guarantee.value
            with pytest.raises(ap.Refused, match="Only rank 0 has the ledger"):
                run.report()
            return epsilon, epsilon

    ((first, reported), (second, _)), _ = on_both(train)
    assert first == second == reported


def test_another_secret_on_one_rank_is_an_error_on_both(tmp_path):
    """A rank that raised alone would leave the other one waiting."""
    secrets = [SECRET, ap.Secret.insecure(8)]
    found, _ = on_both(lambda rank, transport: opened(tmp_path, rank, transport, secret=secrets[rank]))
    assert ["secret of rank 1 differs" in str(error) for error in found] == [True, True]
    opened_again = ap.Run.open(PLAN, tmp_path, leaves={"0": ap.Leaf((SIZE,))}, secret=SECRET)
    opened_again.close()


def test_no_secret_is_sent(tmp_path):
    def train(rank, transport):
        with opened(tmp_path, rank, transport, examples=40) as run:
            run.batch(0)
            run._unit_noise(0)
            run.commit(0, digest_of(0))
            run.publish("model")
            run.save()
            return run.run_id, run.batch(0)

    ((run_id, batch), _), sent = on_both(train)
    secrets = [SECRET._key, SECRET.child("batches", run_id)._key, SECRET.derive("output digest", run_id)]
    secrets += [SECRET.derive("antiphase ledger", run_id), np.asarray(batch.indices, "<i8").tobytes()]
    assert len(sent) > 4
    assert not any(secret in message for secret in secrets for message in sent)


def test_a_closed_run_is_closed_on_every_rank(tmp_path):
    def close(rank, transport):
        run = opened(tmp_path, rank, transport)
        run.close()
        with pytest.raises(ap.Refused, match="The run is closed"):
            run._unit_noise(0)
        return True

    assert on_both(close)[0] == [True, True]
