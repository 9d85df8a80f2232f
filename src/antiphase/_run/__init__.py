"""Runs: batches, noise and a ledger that advance together and are kept in one directory."""

from antiphase._run.digests import DIGEST_BYTES, KeyedDigest, digest
from antiphase._run.history import HOST, Publication
from antiphase._run.integration import (
    awaits_commit,
    check_lineage,
    check_step,
    commit_after,
    commit_with_lineage,
    critical_section,
    draw_batch,
    dtype_of,
    epsilon_so_far,
    epsilon_with_tail,
    examples_of,
    is_committed,
    leaves_of,
    open_shared,
    outputs_digest,
    own_leaves_of,
    read_noise,
    record_noise_read,
    record_withdrawal,
    secret_of,
    set_noise_source,
    start_noise,
    state_bytes_of,
    transport_of,
    unit_noise,
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
    "KeyedDigest",
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
    "draw_batch",
    "dtype_of",
    "epsilon_so_far",
    "epsilon_with_tail",
    "examples_of",
    "is_committed",
    "leaves_of",
    "open_shared",
    "outputs_digest",
    "own_leaves_of",
    "read_noise",
    "read_run",
    "record_noise_read",
    "record_withdrawal",
    "refuse_pickle",
    "secret_of",
    "set_noise_source",
    "start_noise",
    "state_bytes_of",
    "transport_of",
    "unit_noise",
]
