"""Options for the models of an agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from strata.api.agent_loop.v1 import agent_service_pb2 as pb

ModelOption = Annotated[
    str | None,
    typer.Option("--model", help='Handle of its chat model, "provider/model"; see strata models.'),
]
FallbackModelsOption = Annotated[
    str | None,
    typer.Option(
        "--fallback-models",
        metavar="A,B",
        help="Handles of the models to try, in this order, when its model is rate limited,"
        ' fails or declines; "" for none.',
    ),
]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Values of the model options; None keeps the agent's setting.

    Attributes:
        handle: Its chat model.
        fallbacks: Its fallback models, separated by commas.
    """

    handle: str | None = None
    fallbacks: str | None = None

    def __bool__(self) -> bool:
        return self.handle is not None or self.fallbacks is not None

    @property
    def handles(self) -> list[str]:
        """All models in the options, the chat model first."""
        return [*([self.handle] if self.handle else []), *self._fallbacks]

    @property
    def _fallbacks(self) -> list[str]:
        return [name for name in map(str.strip, (self.fallbacks or "").split(",")) if name]

    def over(self, present: pb.ModelConfig) -> pb.ModelConfig:
        """Returns a copy of the present configuration with the changed models."""
        changed = pb.ModelConfig()
        changed.CopyFrom(present)
        if self.handle is not None:
            changed.handle = self.handle
        if self.fallbacks is not None:
            changed.fallback_models[:] = self._fallbacks
        return changed
