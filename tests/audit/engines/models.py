"""The small models, data and plans that the engines are audited with."""

import antiphase as ap
from tests.audit.mechanisms import plan_for

STEPS, EXAMPLES, CANARIES, QUIET = 12, 120, 100, 64
BANDED = ap.strategies.Toeplitz([1.0, 0.5, 0.25], STEPS)
CLIP = 0.5
BATCH = 30


def plan(participation=None, strategy=None, noise_std=0.05, examples=EXAMPLES, batch_size=BATCH, clip_norm=CLIP):
    """Little noise: mistakes in clipping and in who takes part are then plain to see, and those in noise no less."""
    strategy = BANDED if strategy is None else strategy
    given = ap.Mechanism(strategy, participation or ap.MinSeparation(4), noise_std)
    return plan_for(given, clip_norm, examples, batch_size)
