"""Mistakes in a training loop, planted in the loop in NumPy, in the run's noise, and in the samplers."""

from dataclasses import replace

import numpy as np

import antiphase as ap
from antiphase.audit._simulation import clipped_rows, numpy_step
from tests.audit.engines.models import BANDED, BATCH, CLIP, STEPS, plan
from tests.audit.engines.numpy_audits import audit
from tests.audit.engines.planted import Bug, patched

MANY = {"quiet": 1024}
SPARSE = plan(ap.Poisson(0.006), ap.strategies.Identity(STEPS), batch_size=None)
POISSON = plan(ap.Poisson(0.25), ap.strategies.Identity(STEPS))
CYCLIC = plan(ap.CyclicPoisson(4, 0.9), batch_size=27)


def scaled(factor):
    return lambda run, step, total: total + factor * run.gradient_noise(step)[0]


def no_noise(run, step, total):
    return total + 0 * run.gradient_noise(step)[0]


class Before:
    """Adds the noise of the step before."""

    def __init__(self):
        self.last = 0.0

    def __call__(self, run, step, total):
        found, self.last = total + self.last, run.gradient_noise(step)[0]
        return found


class Stale:
    """Forgets to clear the sum of the step before."""

    def __init__(self):
        self.last = 0.0

    def __call__(self, run, step, total):
        found, self.last = numpy_step(run, step, total + self.last), total
        return found


class First:
    """Adds the noise of the first step in every step."""

    def __init__(self):
        self.noise = None

    def __call__(self, run, step, total):
        noise = run.gradient_noise(step)[0]
        self.noise = noise if self.noise is None else self.noise
        return total + self.noise


class OwnNoise:
    """Makes its own noise, from another matrix, with a generator that is not replayed."""

    def __init__(self, matrix):
        self.matrix, self.rows, self.rng = matrix, None, np.random.default_rng(1)

    def __call__(self, run, step, total):
        run.gradient_noise(step)
        if self.rows is None or self.rows.shape[1] != len(total):
            self.rows = self.rng.normal(0.0, run.plan.mechanism.noise_std * CLIP, (STEPS, len(total)))
        return total + self.matrix[step] @ self.rows


class Fresh:
    """Independent noise, drawn again if a step is replayed."""

    def __init__(self):
        self.rng = np.random.default_rng(2)

    def __call__(self, run, step, total):
        run.gradient_noise(step)
        return total + self.rng.normal(0.0, run.plan.mechanism.noise_std * CLIP, len(total))


def only_with_examples(run, step, total):
    noise = run.gradient_noise(step)[0]
    return total + noise if run.batch(step).mask.any() else total + 0 * noise


def halves(run, step, total):
    noise = run.gradient_noise(step)[0].copy()
    middle = len(noise) // 2
    noise[middle : 2 * middle] = noise[:middle]
    return total + noise


def on_the_mean(run, step, total):
    return BATCH * (total / BATCH + run.gradient_noise(step)[0])


def where_there_are_gradients(run, step, total):
    return total + np.where(total != 0, run.gradient_noise(step)[0], 0.0)


def clipped_after_averaging(rows):
    return BATCH * clipped_rows(rows.mean(axis=0, keepdims=True), CLIP)[0] if len(rows) else rows.sum(axis=0)


def largest_entry(rows):
    """Clips the norm of the first half of the entries only."""
    size = np.linalg.norm(rows[:, : rows.shape[1] // 4], axis=1, keepdims=True)
    return (rows * np.minimum(1.0, CLIP / np.maximum(size, 1e-12))).sum(axis=0)


def shuffled(right):
    """Batches of a shuffling data loader instead of drawn ones."""

    def draw(self, step):
        order = np.random.default_rng(step // 4).permutation(self.examples)
        return np.sort(order[step % 4 :: 4])

    return draw


def another_bin_every_epoch(right):
    return lambda self, step: np.flatnonzero(np.random.default_rng(step // 4).integers(0, 4, self.examples) == step % 4)


def off_by_one(right):
    """Batches that come back after 3 steps instead of 4."""
    return lambda self, step: right(self, step % 3)


def next_group(right):
    """Groups that move on by one step in every round."""
    return lambda self, step: right(self, (step + step // 4) % 4 if step < 8 else step)


def drawn_twice_as_often(right):
    return lambda self, step: np.union1d(right(self, step), right(self, (step + 1) % STEPS))


def half_precision(rows):
    """Norms in float16: the squares of large entries overflow."""
    with np.errstate(over="ignore"):
        size = np.sqrt((rows.astype(np.float16) ** 2).sum(axis=1, keepdims=True)).astype(np.float64)
    size[~np.isfinite(size)] = CLIP
    return (rows * np.minimum(1.0, CLIP / np.maximum(size, 1e-12))).sum(axis=0)


C = BANDED.encoder()
DRAWS = {
    "poisson": "antiphase._samplers.subsampling.PoissonSampler._draw",
    "cyclic": "antiphase._samplers.subsampling.CyclicPoissonSampler._draw",
    "bins": "antiphase._samplers.epochs.BallsInBinsSampler._draw",
    "cycle": "antiphase._samplers.epochs.CycleSampler._draw",
}
BINS = {"given": None}


def bins_audit(directory, seed=1, **options):
    from tests.audit.engines.numpy_audits import bins_plan

    return audit(directory, bins_plan(), seed, **options)


BUGS = {
    "noise 5 % small": Bug(audit, options={"step": scaled(0.95), **MANY}, seen_by="noise: scale"),
    "noise 5 % large": Bug(audit, options={"step": scaled(1.05), **MANY}, seen_by="noise: scale"),
    "no noise": Bug(audit, options={"step": no_noise}, seen_by="noise: scale"),
    "noise not scaled by the clipping norm": Bug(audit, options={"step": scaled(1 / CLIP)}, seen_by="noise: scale"),
    "noise scaled by the clipping norm twice": Bug(audit, options={"step": scaled(CLIP)}, seen_by="signal to noise"),
    "noise divided by the batch size": Bug(audit, options={"step": scaled(1 / BATCH)}, seen_by="signal to noise"),
    "noise added to the mean": Bug(audit, options={"step": on_the_mean}, seen_by="noise: scale"),
    "noise of the step before": Bug(audit, options={"step": Before}, seen_by="noise: steps"),
    "same noise in every step": Bug(audit, options={"step": First}, seen_by="noise: pairs of steps"),
    "C transposed": Bug(
        audit, options={"step": lambda: OwnNoise(np.linalg.inv(C.T)), "quiet": 4096}, seen_by="noise: covariance"
    ),
    "C instead of its inverse": Bug(audit, options={"step": lambda: OwnNoise(C)}, seen_by="noise: lags"),
    "noise not correlated": Bug(audit, options={"step": lambda: OwnNoise(np.eye(STEPS))}, seen_by="noise: lags"),
    "replay with new noise": Bug(audit, options={"given": POISSON, "step": Fresh}, seen_by="replay"),
    "same noise on two halves of the model": Bug(audit, options={"step": halves, **MANY}, seen_by="noise: directions"),
    "noise only where gradients are": Bug(audit, options={"step": where_there_are_gradients}, seen_by="noise: scale"),
    "no noise on empty batches": Bug(
        audit, options={"given": SPARSE, "step": only_with_examples}, seen_by="noise: steps"
    ),
    "sum of the step before not cleared": Bug(audit, options={"step": Stale}, seen_by="other steps"),
    "clipping after averaging": Bug(audit, options={"gradients": clipped_after_averaging}, seen_by="size"),
    "no clipping": Bug(audit, options={"gradients": lambda rows: rows.sum(axis=0)}, seen_by="size"),
    "clipping norm 5 % large": Bug(
        audit, options={"gradients": lambda rows: clipped_rows(rows, 1.05 * CLIP).sum(axis=0)}, seen_by="size"
    ),
    "norm of some entries only": Bug(audit, options={"gradients": largest_entry}, seen_by="size"),
    "norms in half precision": Bug(audit, options={"gradients": half_precision}, seen_by="size"),
    "gradient twice": Bug(
        audit, options={"gradients": lambda rows: 2 * clipped_rows(rows, CLIP).sum(axis=0)}, seen_by="size"
    ),
    "batches shuffled instead of drawn": Bug(
        audit, patched((DRAWS["poisson"], shuffled)), {"given": POISSON}, "participation: counts"
    ),
    "examples drawn twice as often": Bug(
        audit, patched((DRAWS["poisson"], drawn_twice_as_often)), {"given": POISSON}, "participation: rate"
    ),
    "bins redrawn every epoch": Bug(
        bins_audit, patched((DRAWS["bins"], another_bin_every_epoch)), seen_by="participation: promise"
    ),
    "separation off by one": Bug(audit, patched((DRAWS["cycle"], off_by_one)), seen_by="participation: promise"),
    "groups that move": Bug(audit, patched((DRAWS["cyclic"], next_group)), {"given": CYCLIC}, "participation: promise"),
}


def made(bug):
    """Steps with memory are made anew for every audit."""
    step = bug.options.get("step")
    if isinstance(step, type) or (getattr(step, "__name__", "") == "<lambda>" and step.__code__.co_argcount == 0):
        return replace(bug, options={**bug.options, "step": step()})
    return bug
