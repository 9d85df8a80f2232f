"""Runs: batches, noise and a ledger that move together in one directory."""

from antiphase._run.digests import DIGEST_BYTES, digest
from antiphase._run.history import HOST, Publication
from antiphase._run.integration import (
    awaits_commit,
    check_lineage,
    check_step,
    commit_after,
    commit_with_lineage,
    critical_section,
    dtype_of,
    epsilon_so_far,
    epsilon_with_tail,
    examples_of,
    leaves_of,
    open_shared,
    outputs_digest,
    record_noise_read,
    record_withdrawal,
    secret_of,
    set_noise_source,
    state_bytes_of,
)
from antiphase._run.locking import Exclusive
from antiphase._run.noise_replay import NoiseReplay
from antiphase._run.privacy_report import NO_BATCHES, PrivacyReport
from antiphase._run.reading import RunRecord, read_run
from antiphase._run.run import Run, refuse_pickle
from antiphase._run.transport import Transport

__all__ = [
    "DIGEST_BYTES",
    "HOST",
    "NO_BATCHES",
    "Exclusive",
    "NoiseReplay",
    "PrivacyReport",
    "Publication",
    "Run",
    "RunRecord",
    "Transport",
    "awaits_commit",
    "check_lineage",
    "check_step",
    "commit_after",
    "commit_with_lineage",
    "critical_section",
    "digest",
    "dtype_of",
    "epsilon_so_far",
    "epsilon_with_tail",
    "examples_of",
    "leaves_of",
    "open_shared",
    "outputs_digest",
    "read_run",
    "record_noise_read",
    "record_withdrawal",
    "refuse_pickle",
    "secret_of",
    "set_noise_source",
    "state_bytes_of",
]
