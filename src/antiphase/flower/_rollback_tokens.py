"""Rollback tokens, by which a server learns from its clients that its directory was restored from an older copy.

The token of a release is random, authenticated with the run's secret, and in the ledger before the first task of the
release is sent. Clients keep the tokens of the releases they were asked for and return them with every reply. If a
client returns an authentic token that the ledger does not have, the server has forgotten a release, or is about to make
one a second time.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Literal, final

from antiphase._secret import Secret

NONCE_DIGITS = 16
CODE_DIGITS = 32

Verdict = Literal["known", "forged", "forgotten"]


@final
class RollbackTokens:
    """The tokens of a run that are in its ledger.

    **Guarantee**: only a token made with the run's secret can be "forgotten", so no client can stop a server whose
    directory is intact.

    >>> tokens, later = (RollbackTokens(Secret.insecure(1), "run") for _ in range(2))
    >>> tokens.add(0, "0" * 16)
    >>> later.add(0, "f" * 16)
    >>> tokens.verdict(0, tokens.token(0)), tokens.verdict(0, "0" * 48), tokens.verdict(0, later.token(0))
    ('known', 'forged', 'forgotten')
    """

    def __init__(self, secret: Secret, run_id: str) -> None:
        self._key = secret.derive("antiphase flower marks", run_id)
        self._nonces: dict[int, str] = {}

    def __contains__(self, release: int) -> bool:
        return release in self._nonces

    def add(self, release: int, nonce: str) -> None:
        """Add the nonce that the ledger has for a release."""
        self._nonces[release] = nonce

    def token(self, release: int) -> str:
        """Return the token of a release, as it is sent to clients."""
        nonce = self._nonces[release]
        return nonce + self._code(release, nonce)

    def verdict(self, release: int, token: str) -> Verdict:
        """Classify a token that a client returned for a release."""
        nonce, code = token[:NONCE_DIGITS], token[NONCE_DIGITS:]
        if not hmac.compare_digest(code.encode(), self._code(release, nonce).encode()):
            return "forged"
        return "known" if self._nonces.get(release) == nonce else "forgotten"

    def _code(self, release: int, nonce: str) -> str:
        return hmac.digest(self._key, f"{release} {nonce}".encode(), "sha256").hex()[:CODE_DIGITS]


def fresh_nonce() -> str:
    """Return 64 random bits, in hexadecimal."""
    return secrets.token_hex(NONCE_DIGITS // 2)
