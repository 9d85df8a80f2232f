"""Every participation at small sizes, and what it promises, worked out from the participation alone."""

import inspect

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase import _participation as p
from antiphase._secret import Secret

SMALL = st.integers(1, 4)
RATES = st.sampled_from([1.0, 0.7, 0.3, 0.05, 1e-9])
LIMITS = st.none() | st.integers(1, 5)

# One strategy a class; `test_every_participation_is_covered` keeps this complete.
STRATEGIES = {
    p.SingleParticipation: st.just(p.SingleParticipation()),
    p.EveryStep: st.just(p.EveryStep()),
    p.FixedEpochs: st.builds(p.FixedEpochs, st.integers(2, 4), st.integers(2, 5)),
    p.ShuffledEpochs: st.builds(p.ShuffledEpochs, st.integers(2, 4), st.integers(2, 5)),
    p.MinSeparation: st.builds(p.MinSeparation, st.integers(1, 5), st.none() | SMALL),
    p.Poisson: st.builds(p.Poisson, RATES, LIMITS),
    p.CyclicPoisson: st.builds(p.CyclicPoisson, SMALL, RATES, LIMITS),
    p.FixedSize: st.builds(p.FixedSize, st.integers(1, 3), st.integers(1, 3)),
    p.BallsInBins: st.builds(p.BallsInBins, st.integers(2, 4), st.integers(2, 5), LIMITS),
    p.PoissonMinSeparation: st.builds(p.PoissonMinSeparation, st.integers(1, 5), RATES, LIMITS, st.booleans()),
}

# One fixed example a class, for tests that need no search.
FIXED = [
    p.SingleParticipation(),
    p.EveryStep(),
    p.FixedEpochs(4, 5),
    p.ShuffledEpochs(4, 5),
    p.MinSeparation(5),
    p.MinSeparation(3, 2),
    p.Poisson(0.3),
    p.Poisson(0.3, max_batch=8),
    p.CyclicPoisson(3, 0.5),
    p.CyclicPoisson(3, 0.5, max_batch=6),
    p.FixedSize(3, 4),
    p.BallsInBins(4, 5),
    p.BallsInBins(4, 5, max_batch=6),
    p.PoissonMinSeparation(4, 0.2),
    p.PoissonMinSeparation(4, 0.2, warm_start=True),
    p.PoissonMinSeparation(4, 0.2, max_batch=3),
]


def concrete(kind=p.Participation):
    """All participations that can be made."""
    found = [sub for child in kind.__subclasses__() for sub in concrete(child)]
    return found if inspect.isabstract(kind) else [kind, *found]


@st.composite
def situations(draw, kinds=tuple(STRATEGIES)):
    """(participation, examples, steps, secret), steps within the participation's reach."""
    participation = draw(st.sampled_from(kinds).flatmap(STRATEGIES.__getitem__))
    reach = getattr(participation, "epochs", 4) * getattr(participation, "steps_per_epoch", 3)
    least = participation.groups * participation.batch_size if isinstance(participation, p.FixedSize) else 1
    examples = draw(st.integers(least, 25))
    return participation, examples, draw(st.integers(1, reach)), Secret.insecure(draw(st.integers(0, 10**6)))


def search(*strategies):
    """`given` without a deadline: the first call compiles, and no test asserts a time."""
    return lambda test: settings(deadline=None, max_examples=60)(given(*strategies)(test))


def incidence(sampler):
    """examples x steps: who takes part when."""
    out = np.zeros((sampler.examples, sampler.steps), bool)
    for step in range(sampler.steps):
        indices, mask = sampler.batch(step)
        out[indices[mask], step] = True
    return out


def broken_promises(participation, taken):
    """The examples whose steps are in no pattern of the participation's worst case, by brute force."""
    patterns = [set(pattern) for pattern in participation.worst_case.patterns(taken.shape[1])]
    realised = [set(np.flatnonzero(row).tolist()) for row in taken]
    return [i for i, steps in enumerate(realised) if not any(steps <= pattern for pattern in patterns)]
