"""Context windows and output limits of hosted models, as their providers documented them.

Only what a provider states for its own service is here: the window of a model that somebody runs
depends on how the server was started, and is asked of that server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

AS_OF = "2025-10-15"
"""The date of the oldest documentation that a row of the table was read from."""

# A dated version, or the alias of the newest one, has the limits of its family.
_VERSION = re.compile(r"-(latest|\d{8}|\d{4}-\d{2}-\d{2}|\d{4})$")


@dataclass(frozen=True, slots=True)
class KnownModel:
    """The limits of a model, in tokens.

    Attributes:
        context_window: Prompt and reply together.
        max_output_tokens: The longest reply.
    """

    context_window: int
    max_output_tokens: int


def known_model(preset: str, model: str) -> KnownModel | None:
    """Returns the documented limits of a model; None if none are known.

    Args:
        preset: Name of the known service that serves it; others have no known models.
        model: Its name there, with or without a version.
    """
    table = _BY_PRESET.get(preset, {})
    return table.get(model) or table.get(_VERSION.sub("", model))


def _rows(window: int, output: int, names: Iterable[str]) -> dict[str, KnownModel]:
    return dict.fromkeys(names, KnownModel(window, output))


_BY_PRESET: dict[str, dict[str, KnownModel]] = {
    "openai": {
        **_rows(400_000, 128_000, ["gpt-5", "gpt-5-mini", "gpt-5-nano", "gpt-5-codex"]),
        **_rows(128_000, 16_384, ["gpt-5-chat", "gpt-4o", "gpt-4o-mini", "chatgpt-4o"]),
        **_rows(1_047_576, 32_768, ["gpt-4.1", "gpt-4.1-mini", "gpt-4.1-nano"]),
        **_rows(200_000, 100_000, ["o1", "o1-pro", "o3", "o3-mini", "o3-pro", "o4-mini"]),
        **_rows(128_000, 4_096, ["gpt-4-turbo"]),
        **_rows(8_192, 8_192, ["gpt-4"]),
        **_rows(16_385, 4_096, ["gpt-3.5-turbo"]),
    },
    "anthropic": {
        **_rows(1_000_000, 128_000, ["claude-sonnet-5"]),
        **_rows(200_000, 64_000, ["claude-sonnet-4-5", "claude-haiku-4-5"]),
        **_rows(200_000, 64_000, ["claude-sonnet-4", "claude-sonnet-4-0", "claude-3-7-sonnet"]),
        **_rows(200_000, 32_000, ["claude-opus-4-1", "claude-opus-4", "claude-opus-4-0"]),
        **_rows(200_000, 8_192, ["claude-3-5-sonnet", "claude-3-5-haiku"]),
        **_rows(200_000, 4_096, ["claude-3-opus", "claude-3-haiku"]),
    },
    "deepseek": {
        **_rows(128_000, 8_192, ["deepseek-chat"]),
        **_rows(128_000, 65_536, ["deepseek-reasoner"]),
    },
    "groq": {
        **_rows(131_072, 32_768, ["llama-3.3-70b-versatile"]),
        **_rows(131_072, 131_072, ["llama-3.1-8b-instant"]),
        **_rows(131_072, 65_536, ["openai/gpt-oss-20b", "openai/gpt-oss-120b"]),
    },
}
