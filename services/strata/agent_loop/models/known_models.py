"""Context windows and output limits of hosted models, as their providers documented them.

Each preset lists the models of its service (`Preset.known_models`). Only hosted services have known
models: the window of a self-hosted model depends on how its server was started, and is requested
from that server. Services whose list of models has the window, such as Groq and Mistral, need
no rows. Decision 0036 lists the sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

AS_OF = "2026-11-25"
"""The date on which the presets were compared with the documentation."""

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


def rows(window: int, output: int, names: Iterable[str]) -> dict[str, KnownModel]:
    """Returns rows of a table of known models, for models with the same limits in tokens."""
    return dict.fromkeys(names, KnownModel(window, output))


def limits_of(table: Mapping[str, KnownModel], model: str) -> KnownModel | None:
    """Returns the documented limits of a model; None if none are known.

    Args:
        table: The known models of the service that serves it.
        model: Its name there, with or without a version.
    """
    # Google lists its models with this prefix.
    model = model.removeprefix("models/")
    return table.get(model) or table.get(_VERSION.sub("", model))
