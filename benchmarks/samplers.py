"""Number of batches per second of every sampler, for 10 million examples and batches of about 10,000 examples.

python -m benchmarks.samplers [examples]
"""

from __future__ import annotations

import sys
import time

from antiphase import _participation as p
from antiphase._secret import Secret
from benchmarks._measure import sized

EXAMPLES, COMPILED = sized(10_000_000, 8000), sized(1_000_000, 4000)
BATCH = sized(10_000, 100)
ROUNDS = sized(1000, 10)


def participations(examples: int) -> list[p.Participation]:
    b = max(1, examples // BATCH)
    epochs = 3
    return [
        p.SingleParticipation(),
        p.FixedEpochs(epochs, b),
        p.MinSeparation(b),
        p.ShuffledEpochs(epochs, b),
        p.Poisson(1 / b),
        p.Poisson(1 / b, max_batch=BATCH),
        p.CyclicPoisson(16, 16 / b),
        p.FixedSize(1, min(BATCH, examples)),
        p.FixedSize(16, min(BATCH, examples // 16)),
        p.BallsInBins(epochs, b),
        p.BallsInBins(epochs, b, max_batch=BATCH),
        p.PoissonMinSeparation(b // 2, 2 / b),
        p.PoissonMinSeparation(b // 2, 2 / b, warm_start=True),
    ]


def main() -> None:
    examples = int(sys.argv[1]) if len(sys.argv) > 1 else EXAMPLES
    steps = 2 * max(1, examples // BATCH)
    for small in participations(COMPILED):  # compile all samplers before the measurement
        small.sampler(COMPILED, 100, Secret.insecure(0)).batch(0)
    print(f"{'participation':72} {'first, s':>9} {'batch':>8} {'batches/s':>9}")
    for participation in participations(examples):
        start = time.perf_counter()
        sampler = participation.sampler(examples, steps, Secret.insecure(1))
        sampler.batch(0)
        first = time.perf_counter() - start
        start, taken = time.perf_counter(), 0
        rounds = min(ROUNDS, steps - 1)
        for step in range(1, 1 + rounds):
            taken += int(sampler.batch(step).mask.sum())
        speed = rounds / (time.perf_counter() - start)
        print(f"{participation!r:72} {first:9.3f} {taken // rounds:8d} {speed:9.0f}")


if __name__ == "__main__":
    main()
