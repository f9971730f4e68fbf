"""Token counts of model calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or several model calls.

    Attributes:
        prompt_tokens: The whole prompt, including tokens read from or written to a cache.
        completion_tokens: The whole reply, including reasoning.
        cached_input_tokens: Part of the prompt that was read from the provider's cache.
        cache_write_tokens: Part of the prompt that was written to the provider's cache.
        reasoning_tokens: Part of the reply that is reasoning.
        estimated: The server reported no tokens; they, or some of a sum, are estimated from text
            lengths.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False

    @property
    def total_tokens(self) -> int:
        """Prompt and reply together."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        """Returns the sum of two usages; estimated if either is."""
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.estimated or other.estimated,
        )

    def less(self, other: Usage) -> Usage:
        """Returns the difference to another usage, count by count; never below 0."""
        counts = {name: max(0, getattr(self, name) - getattr(other, name)) for name in COUNTS}
        return Usage(**counts, estimated=self.estimated) if any(counts.values()) else Usage()

    def to_json(self) -> dict[str, Any]:
        """Returns the counts and their total by name, in their stored form."""
        return {name: getattr(self, name) for name in (*FIELDS, "total_tokens")}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Returns the usage of its stored form, with or without the total."""
        return cls(**{name: value[name] for name in FIELDS if name in value})


FIELDS = tuple(field.name for field in fields(Usage))
"""Names of all fields, in order."""

COUNTS = FIELDS[:-1]
"""Names of the numbers of tokens."""
