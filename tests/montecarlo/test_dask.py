"""Samples over a Dask cluster, through joblib's own backend: the same numbers as here."""

import joblib
import pytest

from antiphase import BallsInBins
from antiphase._accounting import Mechanism, MonteCarlo, epsilon
from antiphase._accounting import amplified as module
from antiphase._montecarlo import estimate
from antiphase.strategies import Toeplitz

STRATEGY, PARTICIPATION = Toeplitz([1.0, 0.5, 0.25], 30), BallsInBins(3, 10)


def numbers(workers: int) -> tuple:
    """A plain estimate and a certified epsilon, neither from the cache."""
    module._known.clear()
    found = epsilon(Mechanism(STRATEGY, PARTICIPATION, 4.0), 1e-6, MonteCarlo(samples=1 << 16, workers=workers, seed=1))
    return found, estimate(STRATEGY, PARTICIPATION, 2.0, 1.0, samples=1 << 16, seed=1, workers=workers)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of dask and its event loop
def test_a_dask_cluster_gives_the_same_numbers():
    from dask.distributed import Client, LocalCluster

    here = numbers(1)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
        joblib.parallel_config(backend="dask", wait_for_workers_timeout=60),
    ):
        assert len(client.scheduler_info()["workers"]) == 2
        there = numbers(-1)
        ran = client.run(_has_sampled)
    assert there == here
    assert sum(ran.values()) >= 1  # the workers did it


def _has_sampled() -> bool:
    """In a worker: whether the kernels were loaded, which nothing but a block of samples does."""
    import sys

    return "antiphase._kernels.bins" in sys.modules
