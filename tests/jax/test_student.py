"""The student of the training comparison clips in closed form; it must be what the library's own clipping gives."""

import jax
import numpy as np
import pytest

import antiphase.jax as apj
from benchmarks import _student as student


@pytest.mark.parametrize("clip_norm", [1.0, *(pytest.param(norm, marks=pytest.mark.slow) for norm in (0.05, 100.0))])
def test_the_closed_form_is_the_sum_of_clipped_gradients(clip_norm):
    (images, labels), _ = student.teacher.make_data(24, 8)
    mask = np.arange(24) % 4 > 0
    theta = student.flat_params(3)

    def loss(theta, x, y):
        return -jax.nn.log_softmax(student.outputs(theta, x[None])[0])[y]

    wanted = jax.jit(apj.clipped_sum(loss, clip_norm))(theta, (images, labels), mask)
    made = jax.jit(student.clipped_sum)(theta, images, labels, mask, clip_norm)
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5 * clip_norm)
    assert student.PARAMETERS == theta.size <= 20_000


def test_training_takes_the_steps_of_heavy_ball_sgd_with_the_noise_given():
    (images, labels), _ = student.teacher.make_data(24, 8)
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((3, 2, student.PARAMETERS)).astype(np.float32)
    indices, mask = rng.integers(0, 24, (3, 2, 6)), rng.random((3, 2, 6)) < 0.8
    schedule, rates = np.array([1.0, 0.5, 0.25], np.float32), np.array([0.1, 0.4], np.float32)
    start = np.stack([student.flat_params(seed) for seed in (0, 1)])
    carry = (np.stack([start, start]), np.zeros((2, 2, student.PARAMETERS), np.float32))
    made, _ = student.train(carry, (images, labels), (noise, indices, mask, schedule), rates, (0.5, 6, 0.9))
    clipped = jax.jit(student.clipped_sum)
    for r, s in ((0, 1), (1, 0)):
        theta, momentum = start[s], 0.0
        for t in range(3):
            total = clipped(theta, images[indices[t, s]], labels[indices[t, s]], mask[t, s], 0.5)
            momentum = 0.9 * momentum + (np.asarray(total) + 0.5 * noise[t, s]) / 6
            theta = theta - rates[r] * schedule[t] * momentum
        np.testing.assert_allclose(made[r, s], theta, rtol=1e-4, atol=1e-5)
