"""The demo's model: gradients against differences, clipping against one example at a time."""

import numpy as np
import pytest

import antiphase as ap
from antiphase._demo.comparison import compare
from antiphase._demo.confidence_interval import difference, mean
from antiphase._demo.digits import Digits, accuracy, clipped_sum, load_digits, zero_model

RANDOM = np.random.default_rng(3)
BATCH = Digits(RANDOM.uniform(size=(7, 64)), RANDOM.integers(0, 10, size=7))
MODEL = [RANDOM.normal(size=leaf.shape) for leaf in zero_model(64)]


def one(batch, i):
    return Digits(batch.images[i : i + 1], batch.labels[i : i + 1])


def log_loss(model, batch):
    scores = batch.images @ model[0] + model[1]
    return float((np.log(np.exp(scores).sum(1)) - scores[np.arange(len(batch)), batch.labels]).sum())


def test_without_clipping_it_is_the_gradient():
    gradient = clipped_sum(MODEL, BATCH, clip_norm=1e9)
    direction = [RANDOM.normal(size=leaf.shape) for leaf in MODEL]
    step = 1e-6
    ahead, behind = ([m + s * step * d for m, d in zip(MODEL, direction, strict=True)] for s in (1.0, -1.0))
    slope = (log_loss(ahead, BATCH) - log_loss(behind, BATCH)) / (2 * step)
    assert slope == pytest.approx(sum(float((g * d).sum()) for g, d in zip(gradient, direction, strict=True)), rel=1e-6)


@pytest.mark.parametrize("clip_norm", [0.1, 1.0, 2.0])
def test_every_example_is_clipped_on_its_own(clip_norm):
    alone = [np.concatenate([g.ravel() for g in clipped_sum(MODEL, one(BATCH, i), clip_norm)]) for i in range(7)]
    free = [np.concatenate([g.ravel() for g in clipped_sum(MODEL, one(BATCH, i), 1e9)]) for i in range(7)]
    for a, f in zip(alone, free, strict=True):
        assert np.linalg.norm(a) <= clip_norm * (1 + 1e-12)
        np.testing.assert_allclose(a, f * min(1.0, clip_norm / np.linalg.norm(f)), rtol=1e-12)
    together = np.concatenate([g.ravel() for g in clipped_sum(MODEL, BATCH, clip_norm)])
    np.testing.assert_allclose(together, sum(alone), rtol=1e-12, atol=1e-14)


def test_an_empty_batch_has_no_gradient():
    empty = Digits(np.empty((0, 64)), np.empty(0, np.int64))
    assert all((g == 0.0).all() for g in clipped_sum(MODEL, empty, 1.0))


def test_the_digits_are_split_once():
    train, test = load_digits()
    assert (len(train), len(test)) == (1437, 360)
    assert train.images.min() == 0.0
    assert train.images.max() == 1.0
    assert set(train.labels) == set(test.labels) == set(range(10))
    assert accuracy(zero_model(64), test) == pytest.approx(np.mean(test.labels == 0))


def test_intervals_hold_as_often_as_they_say():
    """With 2,000 tries the share lies within 0.95 +- 0.02 but for a chance below 1e-4."""
    draws = RANDOM.normal(0.5, 0.1, size=(2000, 2, 6))
    inside = [abs(mean(d[0]).value - 0.5) <= mean(d[0]).margin for d in draws]
    assert abs(np.mean(inside) - 0.95) < 0.02
    apart = [abs(difference(d[0], d[1]).value) <= difference(d[0], d[1]).margin for d in draws]
    assert 0.93 < np.mean(apart) < 0.98


def test_an_interval_needs_two_runs(tmp_path):
    with pytest.raises(
        ap.InvalidArgument, match=r"The 'values' parameter of mean must be at least two numbers. Got \[0.5\]"
    ):
        mean([0.5])
    with pytest.raises(ap.InvalidArgument, match=r"The 'seeds' parameter of compare must be at least 2. Got 1"):
        compare(tmp_path, seeds=1)
    assert not list(tmp_path.iterdir())
