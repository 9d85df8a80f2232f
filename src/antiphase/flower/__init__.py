"""Flower integration for federated learning with correlated noise: a server strategy, a client mod and a report.

Install it with `pip install antiphase[flower]`. `import antiphase` does not load it; use `import antiphase.flower`.
"""

try:
    import flwr.serverapp.strategy  # noqa: F401  # imported here for a helpful error message
except ImportError as error:
    raise ImportError(
        "antiphase.flower needs Flower, which is not installed.\n\nhint: pip install antiphase[flower]"
    ) from error

from antiphase._federated import FederatedReport, report
from antiphase.flower._client import participation_mod
from antiphase.flower._optimizer import SGD, ServerOptimizer
from antiphase.flower._planning import Extrapolation, cohort, extrapolate
from antiphase.flower._strategy import DPFTRL

__all__ = [
    "DPFTRL",
    "SGD",
    "Extrapolation",
    "FederatedReport",
    "ServerOptimizer",
    "cohort",
    "extrapolate",
    "participation_mod",
    "report",
]
