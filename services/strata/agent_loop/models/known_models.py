"""Context windows and output limits of hosted models, as their providers documented them.

The table has only hosted services: the window of a self-hosted model depends on how its server was
started, and is requested from that server. Services whose list of models has the window (Groq,
Mistral, OpenRouter, Together) need no row. Decision 0036 lists the sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

AS_OF = "2026-11-25"
"""The date on which the table was compared with the documentation."""

# Dated versions and aliases of the newest one have the limits of their family.
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
        preset: Name of the known service that serves it; other services have no known models.
        model: Its name there, with or without a version.
    """
    table = _BY_PRESET.get(preset, {})
    # Google lists its models with this prefix.
    model = model.removeprefix("models/")
    return table.get(model) or table.get(_VERSION.sub("", model))


def _rows(window: int, output: int, names: Iterable[str]) -> dict[str, KnownModel]:
    return dict.fromkeys(names, KnownModel(window, output))


_OPENAI: dict[str, KnownModel] = {
    **_rows(1_050_000, 128_000, ["gpt-5.6-sol", "gpt-5.6-terra", "gpt-5.6-luna"]),
    **_rows(1_050_000, 128_000, ["gpt-5.5", "gpt-5.4"]),
    **_rows(400_000, 128_000, ["gpt-5.2", "gpt-5.1", "gpt-5", "gpt-5-mini", "gpt-5-nano"]),
    **_rows(1_047_576, 32_768, ["gpt-4.1", "gpt-4.1-mini", "gpt-4.1-nano"]),
    **_rows(200_000, 100_000, ["o3", "o4-mini"]),
    **_rows(128_000, 16_384, ["gpt-4o", "gpt-4o-mini"]),
    **_rows(128_000, 4_096, ["gpt-4-turbo"]),
    **_rows(8_192, 8_192, ["gpt-4"]),
    **_rows(16_385, 4_096, ["gpt-3.5-turbo"]),
}

_BY_PRESET: dict[str, dict[str, KnownModel]] = {
    "openai": _OPENAI,
    "openai_responses": _OPENAI,
    "anthropic": {
        **_rows(1_000_000, 128_000, ["claude-fable-5-1", "claude-opus-5-5", "claude-sonnet-5-5"]),
        **_rows(1_000_000, 128_000, ["claude-fable-5", "claude-opus-5", "claude-sonnet-5"]),
        **_rows(1_000_000, 128_000, ["claude-opus-4-8", "claude-opus-4-6", "claude-sonnet-4-6"]),
        **_rows(200_000, 64_000, ["claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5"]),
        **_rows(200_000, 32_000, ["claude-opus-4-1"]),
    },
    "gemini": {
        **_rows(1_048_576, 65_536, ["gemini-3.5-flash", "gemini-2.5-pro", "gemini-2.5-flash"]),
    },
    "deepseek": {
        **_rows(1_000_000, 384_000, ["deepseek-v4-flash", "deepseek-v4-pro"]),
    },
}
