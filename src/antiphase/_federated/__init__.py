"""Federated runs on disk: participants, the server's state file, and the report. This package does not need Flower."""

from antiphase._federated.causes import CAUSES, DROPPED_OUT, counts_text, remedies
from antiphase._federated.federated_report import (
    FederatedReport,
    achieved_mechanism,
    participation_text,
    report,
    report_on,
)
from antiphase._federated.history import NO_LATTICE, Dropouts, FederatedHistory, ReleaseRecord
from antiphase._federated.participants import Achieved, Participants
from antiphase._federated.reading import (
    DEVIATION,
    RELEASE,
    FederatedRecord,
    is_federated,
    read_federated,
    rolled_back,
)
from antiphase._federated.rollback_tokens import RollbackTokens, fresh_nonce
from antiphase._federated.state import FILE, ServerState, StateKey, check_authentic, read_state

__all__ = [
    "CAUSES",
    "DEVIATION",
    "DROPPED_OUT",
    "FILE",
    "NO_LATTICE",
    "RELEASE",
    "Achieved",
    "Dropouts",
    "FederatedHistory",
    "FederatedRecord",
    "FederatedReport",
    "Participants",
    "ReleaseRecord",
    "RollbackTokens",
    "ServerState",
    "StateKey",
    "achieved_mechanism",
    "check_authentic",
    "counts_text",
    "fresh_nonce",
    "is_federated",
    "participation_text",
    "read_federated",
    "read_state",
    "remedies",
    "report",
    "report_on",
    "rolled_back",
]
