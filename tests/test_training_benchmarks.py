"""The training benchmarks compute what they say: clipped sums, noise by curvature, spectra, tuning and statistics."""

import json

import numpy as np
import pytest

import antiphase as ap
from antiphase._spectrum import lanczos_quadrature
from benchmarks import _curvature, _language, _spectrum, _student_numpy, _training_cells, _training_statistics
from benchmarks._training_cells import Kept, Made, Row, Task, draw_batches, measure
from benchmarks._training_loop import Settings, train


def brute_clipped_sum(loss, theta, examples, clip_norm):
    jax = pytest.importorskip("jax")
    gradients = np.asarray(jax.vmap(jax.grad(loss), (None, 0))(theta, examples), np.float64)
    norms = np.linalg.norm(gradients, axis=1)
    assert (norms > 0.5 * clip_norm).any() or clip_norm > 10
    return (gradients * np.minimum(1.0, clip_norm / norms)[:, None]).sum(0)


@pytest.mark.integration
@pytest.mark.parametrize("clip_norm", [0.1, 0.55, 100.0])
def test_clipped_sum_of_the_language_model(clip_norm):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    width = _language.WIDTH

    def loss(theta, stretch):
        parts = jnp.split(theta, _language.ENDS[:-1])
        from_input, from_hidden, bias, weights, last = (
            part.reshape(size) for part, size in zip(parts, _language.SIZES, strict=True)
        )
        hidden = cell = jnp.zeros(width)
        total = 0.0
        for t in range(_language.LENGTH):
            into, forget, out, new = jnp.split(from_input[stretch[t]] + hidden @ from_hidden + bias, 4)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(into) * jnp.tanh(new)
            hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
            total -= jax.nn.log_softmax(hidden @ weights + last)[stretch[t + 1]]
        return total / _language.LENGTH

    rng = np.random.default_rng(0)
    theta = _language.flat_params(0) + 0.1 * rng.standard_normal(_language.PARAMETERS).astype(np.float32)
    stretches = rng.integers(0, 6, (9, _language.LENGTH + 1)).astype(np.int32)
    model, out = _language.LanguageModel(stretches, clip_norm), np.empty(_language.PARAMETERS, np.float32)
    model.clipped_sum(theta, model.gather(np.arange(9)), out)
    np.testing.assert_allclose(out, brute_clipped_sum(loss, theta, stretches, clip_norm), atol=3e-6)
    mean = float(np.mean([loss(theta, stretch) for stretch in stretches]))
    assert model.evaluate(theta)[1] == pytest.approx(mean, rel=1e-5)


@pytest.mark.integration
@pytest.mark.parametrize("clip_norm", [0.5, 3.0, 100.0])
def test_clipped_sum_of_the_student(clip_norm):
    pytest.importorskip("jax")
    from benchmarks._student import clipped_sum, flat_params

    rng = np.random.default_rng(1)
    images, labels = rng.standard_normal((40, 64)).astype(np.float32), rng.integers(0, 10, 40).astype(np.int32)
    theta, chosen = flat_params(0), rng.permutation(40)[:30]
    student = _student_numpy.Student(images, labels, clip_norm)
    out = np.empty(_student_numpy.PARAMETERS, np.float32)
    student.clipped_sum(theta, student.gather(chosen), out)
    expected = clipped_sum(theta, images[chosen], labels[chosen], np.ones(30), clip_norm)
    np.testing.assert_allclose(out, expected, atol=2e-5)


@pytest.mark.integration
def test_clipped_updates_of_users():
    jax = pytest.importorskip("jax")
    from benchmarks import _federated as federated

    jnp = jax.numpy
    rng = np.random.default_rng(2)
    images = rng.standard_normal((5, federated.PICTURES, 64)).astype(np.float32)
    labels = rng.integers(0, 10, (5, federated.PICTURES))
    theta = federated.flat_params(0)

    def loss(theta, x, y):
        first, bias, second, last = jnp.split(theta, [federated.FIRST, federated.SECOND, federated.THIRD])
        hidden = jax.nn.relu(x @ first.reshape(64, -1) + bias)
        odds = jax.nn.log_softmax(hidden @ second.reshape(-1, 10) + last)
        return -jnp.take_along_axis(odds, y[:, None], 1).mean()

    expected = np.zeros(federated.PARAMETERS)
    for x, y in zip(images, labels, strict=True):
        local = jnp.array(theta)
        for _ in range(federated.LOCAL_STEPS):
            local = local - federated.LOCAL_RATE * jax.grad(loss)(local, x, y)
        update = theta - np.asarray(local)
        expected += update * min(1.0, 1.0 / np.linalg.norm(update))
    out = np.empty(federated.PARAMETERS, np.float32)
    federated.Users(images, labels, 1.0).clipped_sum(theta, (images, labels), out)
    np.testing.assert_allclose(out, expected, atol=1e-6)


class Linear:
    """A model whose clipped sum is its parameters times the batch size: a quadratic loss."""

    def gather(self, indices):
        return len(indices)

    def clipped_sum(self, theta, batch, out):
        out[:] = batch * theta


def test_loop_is_momentum_and_adam():
    rng = np.random.default_rng(3)
    steps, seeds, size = 7, 2, 4
    start, noise = rng.standard_normal((seeds, size)), rng.standard_normal((steps, seeds, size))
    batches = [[np.arange(3)] * steps] * seeds
    schedule, rates = np.linspace(1.0, 0.5, steps), (0.1, 0.2)
    for optimizer in ("momentum", "adam"):
        settings = Settings(2.0, 3, 0.9, schedule, rates, optimizer)
        found = train(Linear(), start.astype(np.float32), batches, iter(noise.astype(np.float32)), settings)
        for i, rate in enumerate(rates):
            theta, first, second = start.copy(), np.zeros((seeds, size)), np.zeros((seeds, size))
            for t in range(steps):
                gradient = (3 * theta + 2.0 * noise[t]) / 3
                if optimizer == "momentum":
                    first = 0.9 * first + gradient
                    theta = theta - schedule[t] * rate * first
                    continue
                first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
                scaled = first / (1 - 0.9 ** (t + 1)) / (np.sqrt(second / (1 - 0.999 ** (t + 1))) + 1e-8)
                theta = theta - schedule[t] * rate * scaled
            np.testing.assert_allclose(found[i], theta, rtol=2e-4, atol=2e-5)


def test_batches_have_the_distribution_of_the_participation():
    steps, examples = 400, 300
    for participation, groups in ((ap.Poisson(0.1), 1), (ap.CyclicPoisson(5, 0.5), 5)):
        batches = draw_batches(participation, examples, steps, seed=4)
        counts = np.zeros((groups, examples))
        for step, batch in enumerate(batches):
            assert len(np.unique(batch)) == len(batch)
            counts[step % groups, batch] += 1
        assert ((counts > 0).sum(0) == 1).all(), "every example is drawn from one group only"
        mean, each = counts.sum(0).mean(), steps // groups * participation.rate
        spread = np.sqrt(each * (1 - participation.rate))
        assert abs(mean - each) < 5 * spread / np.sqrt(examples)
        assert abs(counts.sum(0).std() / spread - 1) < 0.25
    for participation in (ap.FixedEpochs(4, 100), ap.MinSeparation(100, 4)):
        batches = draw_batches(participation, examples, steps, seed=4)
        assert all(np.array_equal(batches[t], batches[t % 100]) for t in range(steps))
        assert np.array_equal(np.sort(np.concatenate(batches[:100])), np.arange(examples))


def a_task(path, runs=None, schedule=None):
    workload = ap.Momentum(0.9, schedule)
    return Task("small", 12, 6, 60, 10, workload, {1.0: 1.0}, runs or (lambda *_: {}), path)


def test_noise_by_curvature_is_that_of_the_matrices():
    schedule = np.linspace(1.0, 0.2, 12)
    task = a_task("unused", schedule=schedule)
    mechanism = ap.Mechanism(ap.strategies.Toeplitz([1.0, 0.5, 0.2], 12), ap.FixedEpochs(2, 6), noise_std=3.0)
    rms, last = _training_cells.noise_by_curvature(task, mechanism)
    assert rms[0] == pytest.approx(3.0 * ap.error(mechanism.strategy, task.workload).rms, rel=1e-5)
    for i, h in enumerate(_training_cells.CURVATURES):
        inverse = np.diag(1 / schedule)
        inverse += np.diag(h - 1 / schedule[1:] - 0.9 / schedule[:-1], -1) + np.diag(0.9 / schedule[1:-1], -2)
        noise = 3.0 * np.linalg.inv(inverse) @ mechanism.strategy.noising()
        assert last[i] == pytest.approx(np.linalg.norm(noise[-1]), rel=1e-5)
        row = _curvature.last_rows(0.9, schedule, np.array([h]))[0] @ mechanism.strategy.noising()
        assert last[i] == pytest.approx(3.0 * np.linalg.norm(row), rel=1e-5)


def test_last_iterate_toeplitz_is_a_minimum():
    h, weights = _curvature.log_uniform(1e-2, 1.0, 0.5, points=5)
    rates = np.ones(40)
    best = _curvature.last_iterate_toeplitz(6, 0.5, rates, h, weights)
    rows = _curvature.last_rows(0.5, rates, h)
    value, gradient = _curvature.loss_and_gradient(best, rows, weights)
    assert np.abs(gradient[1:]).max() < 1e-4
    rng = np.random.default_rng(5)
    for _ in range(20):
        other = best + 0.05 * rng.standard_normal(6)
        assert _curvature.loss_and_gradient(other, rows, weights)[0] > value
    noising = np.linalg.inv(sum(np.diag(np.full(40 - k, c), -k) for k, c in enumerate(best)))
    brute = np.log(best @ best * (weights @ np.square(rows @ noising).sum(1)))
    assert value == pytest.approx(brute)
    step = 1e-6 * rng.standard_normal(6)
    change = _curvature.loss_and_gradient(best + 0.1 + step, rows, weights)[0]
    change -= _curvature.loss_and_gradient(best + 0.1 - step, rows, weights)[0]
    slope = _curvature.loss_and_gradient(best + 0.1, rows, weights)[1]
    assert change == pytest.approx(2 * slope @ step, rel=1e-4)


def test_lanczos_finds_moments_of_the_spectrum():
    rng = np.random.default_rng(6)
    values = np.geomspace(1e-3, 1.0, 60)
    basis = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    matrix = basis @ np.diag(values) @ basis.T
    nodes, weights = lanczos_quadrature(lambda v: matrix @ v, 60, iterations=20, probes=400, rng=rng)
    for power in (0.5, 1.0, 2.0):
        assert weights @ np.maximum(nodes, 0) ** power == pytest.approx((values**power).mean(), rel=0.05)
    h, shares = _spectrum.binned(nodes, weights, low=1e-4)
    assert shares.sum() == pytest.approx(1.0)
    assert shares @ h == pytest.approx((values**2).mean() / values.mean(), rel=0.1)


@pytest.mark.integration
def test_gauss_newton_product_matches_automatic_differentiation():
    jax = pytest.importorskip("jax")
    from benchmarks._student import flat_params, outputs

    rng = np.random.default_rng(7)
    images, theta = rng.standard_normal((20, 64)).astype(np.float32), flat_params(0)
    direction = rng.standard_normal(len(theta))

    def function(theta):
        return outputs(theta, images)

    logits, change = jax.jvp(function, (theta,), (direction.astype(np.float32),))
    odds = jax.nn.softmax(logits)
    back = (odds * change - odds * (odds * change).sum(1, keepdims=True)) / 20
    expected = jax.vjp(function, theta)[1](back)[0]
    product = _spectrum.gauss_newton_product(theta, images, np.inf)
    np.testing.assert_allclose(product(direction), expected, atol=1e-5)
    assert direction @ _spectrum.gauss_newton_product(theta, images, 1.0)(direction) < direction @ product(direction)


def test_cells_are_tuned_resumed_and_not_computed_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(_training_cells, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(_training_cells, "BLOCK", 2)
    calls = []

    def runs(mechanism, seeds, rates):
        calls.append((seeds, rates))
        best = [[-((np.log2(rate) - 3) ** 2) + 0.01 * seed for seed in seeds] for rate in rates]
        return {"accuracy": np.array(best)}

    made = []

    def make(task, epsilon):
        made.append(epsilon)
        participation = ap.FixedEpochs(2, 6)
        return Made(ap.Mechanism(ap.strategies.Identity(12), participation, noise_std=1.0), "white", {"mine": 1.0})

    task, rows = a_task(tmp_path / "results.jsonl", runs), {"white": Row("white", make, "unamplified")}
    measure(task, rows, [1.0], 2, Kept(task.results))
    assert [rates for seeds, rates in calls if seeds == (100, 101)] == [(0.5, 1.0, 2.0), (4.0,), (8.0,), (16.0,)]
    assert calls[-1] == ((0, 1), (8.0,))
    lines = task.results.read_text().splitlines()
    calls.clear()
    measure(task, rows, [1.0], 2, Kept(task.results))
    assert not calls
    measure(task, rows, [1.0], 4, Kept(task.results))
    assert calls == [((2, 3), (8.0,))]
    assert made == [1.0]
    assert task.results.read_text().splitlines()[: len(lines)] == lines
    kept = Kept(task.results)
    assert {line["seed"] for line in kept.find(stage="final")} == {0, 1, 2, 3}
    kept.forget(row="white")
    assert task.results.read_text() == ""


def test_changed_mechanism_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_training_cells, "CACHE", tmp_path / "cache")
    task, std = a_task(tmp_path / "results.jsonl"), [1.0]

    def make(task, epsilon):
        return Made(ap.Mechanism(ap.strategies.Identity(12), ap.FixedEpochs(2, 6), noise_std=std[0]), "white")

    row, kept = Row("white", make, "unamplified"), Kept(task.results)
    _training_cells.mechanism_of(task, "white", row, 1.0, kept)
    next((tmp_path / "cache").rglob("*.json")).unlink()
    std[0] = 1.1
    with pytest.raises(SystemExit, match="differs from the one whose results are in"):
        _training_cells.mechanism_of(task, "white", row, 1.0, kept)


def test_statistics(tmp_path):
    path = tmp_path / "results.jsonl"
    rng = np.random.default_rng(8)
    lines = []
    for i in range(6):
        plan = {"stage": "plan", "row": f"r{i}", "epsilon": 1.0, "predicted": {"mine": float(-i)}}
        lines.append({**plan, "rms": [1.0 + i] * 27, "last": [9.0 - i] * 27})
        common = rng.standard_normal(30)
        for seed in range(30):
            value = 0.5 + 0.01 * i + 0.001 * common[seed]
            final = {"stage": "final", "row": f"r{i}", "epsilon": 1.0, "rate": 1.0, "seed": seed, "accuracy": value}
            lines.append(final)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    kept, names = Kept(path), [f"r{i}" for i in range(6)]
    for prediction, expected in (("rms, h = 0", -1.0), ("last, mixture", 1.0), ("last, 0.01 rate", 1.0), ("mine", 1.0)):
        value, count = _training_statistics.rank_correlation(kept, names, 1.0, prediction)
        assert (value, count) == (pytest.approx(expected), 6)
    mean, half, seeds = _training_statistics.paired(kept, "r3", "r1", 1.0)
    differences = [
        kept.find(row="r3", seed=s)[0]["accuracy"] - kept.find(row="r1", seed=s)[0]["accuracy"] for s in range(30)
    ]
    assert seeds == 30
    assert mean == pytest.approx(np.mean(differences))
    assert half == pytest.approx(2.045 * np.std(differences, ddof=1) / np.sqrt(30), rel=1e-3)
