"""The usage of model calls that a service made for a call of another service, outside of runs.

It is sent as trailing metadata: with an error as well as with a response, because the tokens are
spent in both cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from strata.shared.usage import Usage

USAGE_KEY: Final = "x-strata-usage"
"""Trailing metadata between services: a `CallUsage` as JSON; not sent to clients."""

Trailing = Iterable[tuple[str, str | bytes]]
"""The trailing metadata of an answer."""


@dataclass(frozen=True, slots=True)
class CallUsage:
    """The model calls that were made for one call.

    Attributes:
        model_calls: Their number.
        usage: Their tokens.
    """

    model_calls: int = 0
    usage: Usage = field(default_factory=Usage)

    def plus(self, usage: Usage) -> CallUsage:
        """Returns the sum with one more model call."""
        return CallUsage(self.model_calls + 1, self.usage + usage)

    def to_metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the trailing metadata; empty if there was no model call."""
        if not self.model_calls:
            return ()
        counts = {"model_calls": self.model_calls, **self.usage.to_json()}
        return ((USAGE_KEY, json.dumps(counts)),)

    @classmethod
    def from_metadata(cls, trailing: Trailing | None) -> Self:
        """Returns the usage in trailing metadata, without model calls if there is none."""
        for key, value in trailing or ():
            if key == USAGE_KEY:
                counts: dict[str, Any] = json.loads(value)
                return cls(counts["model_calls"], Usage.from_json(counts))
        return cls()
