"""Rollback tokens let a server detect that its directory was restored from an older copy.

The token of a release is random and authenticated with the run's secret. The server writes it to the ledger before it
sends the first task (a message that asks a client to check in or to train) of the release. Clients store the tokens of
the tasks that they received, and return these tokens with every reply. If a client returns an authentic token that is
not in the ledger, the ledger has lost a release. The server may then be about to make that release a second time.
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
    """Makes and checks the rollback tokens of a run.

    **Guarantee**: `verdict` returns "forgotten" only for tokens made with the run's secret. If the directory is intact,
    the ledger has all tokens made with the secret. Then no client can cause this verdict, which stops the server.

    Args:
        secret: secret of the run.
        run_id: id of the run.
        nonces: the nonce of each release in the ledger. The caller keeps this dict and adds later releases to it.

    >>> tokens, later = (RollbackTokens(Secret.insecure(1), "run", {0: digit * 16}) for digit in "0f")
    >>> tokens.verdict(0, tokens.token(0)), tokens.verdict(0, "0" * 48), tokens.verdict(0, later.token(0))
    ('known', 'forged', 'forgotten')
    """

    def __init__(self, secret: Secret, run_id: str, nonces: dict[int, str]) -> None:
        self._key = secret.derive("antiphase flower marks", run_id)
        self._nonces = nonces

    def __contains__(self, release: int) -> bool:
        return release in self._nonces

    def token(self, release: int) -> str:
        """Return the token of a release, in the form that is sent to clients."""
        nonce = self._nonces[release]
        return nonce + self._code(release, nonce)

    def verdict(self, release: int, token: str) -> Verdict:
        """Classify a token that a client returned for a release.

        Returns "known" if the token is in the ledger, "forged" if it is not authentic, and "forgotten" if it is
        authentic but not in the ledger.
        """
        nonce, code = token[:NONCE_DIGITS], token[NONCE_DIGITS:]
        if not hmac.compare_digest(code.encode(), self._code(release, nonce).encode()):
            return "forged"
        return "known" if self._nonces.get(release) == nonce else "forgotten"

    def _code(self, release: int, nonce: str) -> str:
        return hmac.digest(self._key, f"{release} {nonce}".encode(), "sha256").hex()[:CODE_DIGITS]


def fresh_nonce() -> str:
    """Return 64 random bits, in hexadecimal."""
    return secrets.token_hex(NONCE_DIGITS // 2)
