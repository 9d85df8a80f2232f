"""Federated learning with correlated noise on Flower: a server strategy, a client mod, and a privacy report.

Install it with `pip install antiphase[flower]` and import it explicitly: `import antiphase.flower`.
"""

try:
    import flwr.serverapp.strategy  # noqa: F401  # imported here, so that the error says how to install it
except ImportError as error:
    raise ImportError(
        "antiphase.flower needs Flower, which is not installed.\n\nhint: pip install antiphase[flower]"
    ) from error

from antiphase.flower._client import participation_mod
from antiphase.flower._optimizer import SGD, ServerOptimizer
from antiphase.flower._planning import Extrapolation, cohort, extrapolate
from antiphase.flower._report import FederatedReport, report
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
