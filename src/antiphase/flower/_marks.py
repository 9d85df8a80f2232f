"""Marks on tasks, by which a server finds out from its clients that its directory was put back to an older state.

The mark of a release is random, is in the ledger before the first task of the release is sent, and is authenticated by
the run's secret. A client keeps the marks of the releases that it was asked for, and returns them with every reply.
A server that is shown a mark of its own which its ledger does not hold made a release that it has forgotten, or is
about to make one a second time.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Literal, final

from antiphase._secret import Secret

NONCE_DIGITS = 16
CODE_DIGITS = 32

Verdict = Literal["known", "false", "forgotten"]


@final
class Marks:
    """The marks of a run, as far as its ledger has them.

    **Guarantee**: "forgotten" is said only of marks that a holder of the secret made for this run, so no client can
    stop a server whose directory is whole.

    >>> marks, later = (Marks(Secret.insecure(1), "run") for _ in range(2))
    >>> marks.enter(0, "0" * 16)
    >>> later.enter(0, "f" * 16)
    >>> marks.verdict(0, marks.text(0)), marks.verdict(0, "0" * 48), marks.verdict(0, later.text(0))
    ('known', 'false', 'forgotten')
    """

    def __init__(self, secret: Secret, run_id: str) -> None:
        self._key = secret.derive("antiphase flower marks", run_id)
        self._nonces: dict[int, str] = {}

    def __contains__(self, release: int) -> bool:
        return release in self._nonces

    def enter(self, release: int, nonce: str) -> None:
        """What the ledger says of a release."""
        self._nonces[release] = nonce

    def text(self, release: int) -> str:
        """The mark, as it is sent."""
        nonce = self._nonces[release]
        return nonce + self._code(release, nonce)

    def verdict(self, release: int, mark: str) -> Verdict:
        """What a mark shows that a client returns."""
        nonce, code = mark[:NONCE_DIGITS], mark[NONCE_DIGITS:]
        if not hmac.compare_digest(code.encode(), self._code(release, nonce).encode()):
            return "false"
        return "known" if self._nonces.get(release) == nonce else "forgotten"

    def _code(self, release: int, nonce: str) -> str:
        return hmac.digest(self._key, f"{release} {nonce}".encode(), "sha256").hex()[:CODE_DIGITS]


def fresh_nonce() -> str:
    """64 random bits."""
    return secrets.token_hex(NONCE_DIGITS // 2)
