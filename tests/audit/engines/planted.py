"""What planted mistakes share: a patch over a real engine, and the audit that should see it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True)
class Bug:
    """One mistake.

    Args:
        audit: function (directory, seed=..., **options) that returns an audit or a test.
        patches: context that plants the mistake.
        options: options of the audit.
        seen_by: words that a finding or departure must contain; empty if any will do.
        tries: number of audits, if it takes a coin for the mistake to matter.
        slow: whether only `make test-all` tries it, because another engine has the same mistake.
    """

    audit: Callable[..., Any]
    patches: Callable[[], AbstractContextManager[Any]] = nullcontext
    options: dict[str, Any] = field(default_factory=dict)
    seen_by: str = ""
    tries: int = 1
    slow: bool = False

    def is_seen(self, directory, seed=1) -> tuple[bool, tuple[str, ...]]:
        """Whether one of `tries` audits sees the mistake, and what the last one found."""
        findings: tuple[str, ...] = ()
        for i in range(self.tries):
            findings = self.findings(directory / str(i), seed + i)
            if any(self.seen_by in text for text in findings):
                return True, findings
        return False, findings

    def findings(self, directory, seed=1) -> tuple[str, ...]:
        """What one audit finds, with the mistake in place."""
        with self.patches():
            found = self.audit(directory, seed=seed, **self.options)
        return tuple(getattr(found, "findings", getattr(found, "departures", ())))


def patched(*changes: tuple[str, Any]) -> Callable[[], AbstractContextManager[Any]]:
    """A context in which each named thing is replaced; `replacement(right)` makes the replacement from the original."""

    def context() -> AbstractContextManager[Any]:
        stack = ExitStack()
        for name, change in changes:
            stack.enter_context(patch(name, change(_original(name))))
        return stack

    return context


def _original(name: str) -> Any:
    getter = patch(name)
    getter.target = getter.getter()
    return getter.get_original()[0]
