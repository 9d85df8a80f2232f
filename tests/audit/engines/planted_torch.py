"""Mistakes planted in antiphase.torch: in its clipping, its noise and its steps."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import antiphase as ap
import antiphase.audit.torch as driver
from tests.audit.engines.models import CLIP, EXAMPLES, plan
from tests.audit.engines.planted import Bug, patched
from tests.audit.engines.planted_numpy import DRAWS, POISSON, SPARSE, shuffled
from tests.audit.engines.torch_audits import audit, real_example

NOISE = "antiphase.torch._noise_adder.read_noise"
CHECKS = "antiphase.torch._clipping_checks"
MANY = {"quiet": 1024}
FIRST_LAYER = (5, 6)  # shape of a weight of the model


def scaled(factor):
    return lambda right: lambda run, step: [factor * part for part in right(run, step)]


def on_the_mean(right):
    def add_noise(self):
        for total in self._total:
            total.div_(self.expected_batch_size)
        right(self)

    return add_noise


def unscaled(right):
    return lambda self: None


def in_every_piece():
    """Noise is added once for each physical batch of a step."""
    pieces = []

    def take(right):
        def counted(self):
            pieces.append(1)
            return right(self)

        return counted

    def noise(right):
        def read(run, step):
            count = max(len(pieces), 1)
            pieces.clear()
            return [count * part for part in right(run, step)]

        return read

    return patched((f"{CHECKS}.PerExampleClipping.take", take), (NOISE, noise))()


def not_on_empty_batches():
    empty = []

    def steps(right):
        def take(self):
            empty.append(True)
            try:
                right(self)
            finally:
                empty.clear()

        return take

    def noise(right):
        return lambda run, step: [(0 if empty else 1) * part for part in right(run, step)]

    return patched(("antiphase.torch._optimizer.PrivateOptimizer.take_empty_steps", steps), (NOISE, noise))()


def one_layer_not_clipped(right):
    return lambda factors, rows: right(torch.ones_like(factors) if rows.shape[1:] == FIRST_LAYER else factors, rows)


def one_layer_not_counted(right):
    return lambda rows: (0 if rows.shape[1:] == FIRST_LAYER else 1) * right(rows)


def twice(right):
    return lambda factors, rows: 2 * right(factors, rows)


def after_averaging(right):
    def factors(norms, clip_norm):
        return torch.ones_like(norms) * min(1.0, clip_norm * len(norms) / (norms.norm() + 1e-6))

    return factors


def last_one_free(right):
    def factors(norms, clip_norm):
        found = right(norms, clip_norm)
        found[-1] = 1.0
        return found

    return factors


def five_percent(right):
    return lambda norms, clip_norm: 1.05 * right(norms, clip_norm)


def in_half_precision(right):
    return lambda rows: rows.flatten(1).half().square().sum(1).double()


def whole_norm_for_each_layer(right):
    return lambda plan, clipping, layers, given: [plan.problem.clip_norm] * layers


def no_products(right):
    return lambda *given: torch.zeros_like(right(*given))


class Tied(nn.Module):
    """Embedding and head share their weight; the gradients of the two uses point the same way."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(3, 4)
        self.head = nn.Linear(4, 3, bias=False)
        with torch.random.fork_rng():
            torch.manual_seed(4)
            nn.init.normal_(self.tokens.weight)
        self.head.weight = self.tokens.weight

    def forward(self, token):
        return self.head(self.tokens(token[:, 0]))


def tied_example(directory, seed=1, **options):
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 3, (EXAMPLES, 1), generator=generator)
    data = TensorDataset(tokens, (tokens[:, 0] + 1) % 3)
    given = plan(ap.EveryStep(), noise_std=1e-4, batch_size=EXAMPLES)
    secret = ap.Secret.insecure(seed)
    found = [
        driver.drive_real_example(
            given, directory / str(i), Tied(), data, nn.CrossEntropyLoss(), example=i, secret=secret, mode="ghost"
        )
        for i in range(4)
    ]
    return max(found, key=lambda test: test.departs)


TINY = plan(ap.EveryStep(), noise_std=1e-4, batch_size=EXAMPLES, clip_norm=1e-5)
BUGS = {
    "noise 5 % small": Bug(audit, patched((NOISE, scaled(0.95))), MANY, "noise: scale"),
    "noise not scaled by the clipping norm": Bug(audit, patched((NOISE, scaled(1 / CLIP))), {}, "noise: scale"),
    "noise added to the mean": Bug(
        audit,
        patched(
            ("antiphase.torch._optimizer.PrivateOptimizer.add_noise", on_the_mean),
            ("antiphase.torch._optimizer.PrivateOptimizer.scale_grad", unscaled),
        ),
        {},
        "noise: scale",
    ),
    "noise in every micro-batch": Bug(audit, in_every_piece, {"physical": 8}, "noise: scale"),
    "no noise on empty batches": Bug(audit, not_on_empty_batches, {"given": SPARSE}, "noise: steps"),
    "gradient twice": Bug(audit, patched((f"{CHECKS}.weighted_sum", twice)), {}, "size"),
    "clipping after averaging": Bug(audit, patched((f"{CHECKS}.clipping_factors", after_averaging)), {}, "size"),
    "last example of a batch not clipped": Bug(
        audit, patched((f"{CHECKS}.clipping_factors", last_one_free)), {}, "size"
    ),
    "ghost clipping 5 % large": Bug(
        audit, patched(("antiphase.torch._criterion.clipping_factors", five_percent)), {"mode": "ghost"}, "size"
    ),
    "functorch clipping 5 % large": Bug(
        audit, patched((f"{CHECKS}.clipping_factors", five_percent)), {"mode": "functorch"}, "size"
    ),
    "batches shuffled instead of drawn": Bug(
        audit, patched((DRAWS["poisson"], shuffled)), {"given": POISSON}, "participation: counts", slow=True
    ),
    "one layer not clipped": Bug(real_example, patched((f"{CHECKS}.weighted_sum", one_layer_not_clipped)), {}, "norm"),
    "one layer not in the norm": Bug(
        real_example, patched((f"{CHECKS}.squared_norms", one_layer_not_counted)), {}, "norm"
    ),
    "norms in half precision": Bug(
        real_example,
        patched((f"{CHECKS}.squared_norms", in_half_precision)),
        {"given": TINY, "weight": 1e-4},
        "norm",
    ),
    "whole clipping norm for each layer": Bug(
        real_example,
        patched(("antiphase.torch._engine.clip_norms_for", whole_norm_for_each_layer)),
        {"options": {"clipping": "per_layer"}},
        "norm",
    ),
    "tied weights clipped once": Bug(
        tied_example, patched(("antiphase.torch._ghost.tied_products", no_products)), {}, "norm"
    ),
}
