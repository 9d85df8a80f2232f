"""Every error the library raises.

AntiphaseError
+-- InvalidArgument      a value that cannot be used (also a ValueError)
+-- NotProved            a combination for which no guarantee is proved
+-- NotEnoughMemory      a computation that would not fit
"""

from __future__ import annotations


class AntiphaseError(Exception):
    """Base of every error the library raises.

    The text says what was given and what is needed; `hint`, after a blank line, says what to change.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n\nhint: {hint}" if hint else message)
        self.message = message
        self.hint = hint


class InvalidArgument(AntiphaseError, ValueError):
    """An argument has a value that cannot be used."""


class NotProved(AntiphaseError):
    """No theorem covers the combination asked for; nothing is guessed."""


class NotEnoughMemory(AntiphaseError, MemoryError):
    """A dense computation was asked for at a size that would not fit."""


class Corrupted(AntiphaseError):
    """A stored file was changed, cut short, or belongs to another key or run."""


class Refused(AntiphaseError):
    """An action that would break the guarantee: a replay with other data, a step past the end, a second process."""
