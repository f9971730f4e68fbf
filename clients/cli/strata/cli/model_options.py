"""Options for the models of an agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.cli.arguments import MAX_INT32

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


TemperatureOption = Annotated[
    float | None, typer.Option("--temperature", min=0, max=2, help="Temperature of its model.")
]
MaxOutputTokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-output-tokens",
        min=0,
        max=MAX_INT32,
        help="Most tokens of a reply of its model, calls of tools included; 0 for the provider's"
        " default.",
    ),
]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Values of the model options; None keeps the agent's setting.

    Attributes:
        handle: Its chat model.
        fallbacks: Its fallback models, separated by commas.
        temperature: The temperature of its model.
        max_output_tokens: The maximum number of tokens of a reply; 0 for the provider's default.
    """

    handle: str | None = None
    fallbacks: str | None = None
    temperature: float | None = None
    max_output_tokens: int | None = None

    def __bool__(self) -> bool:
        return self != ModelOptions()

    @property
    def handles(self) -> list[str]:
        """All models in the options, the chat model first."""
        return [*([self.handle] if self.handle else []), *self._fallbacks]

    @property
    def _fallbacks(self) -> list[str]:
        return [name for name in map(str.strip, (self.fallbacks or "").split(",")) if name]

    def over(self, present: pb.ModelConfig) -> pb.ModelConfig:
        """Returns a copy of the present configuration with the changes."""
        changed = pb.ModelConfig()
        changed.CopyFrom(present)
        if self.handle is not None:
            changed.handle = self.handle
        if self.fallbacks is not None:
            changed.fallback_models[:] = self._fallbacks
        if self.temperature is not None:
            changed.temperature = self.temperature
        if self.max_output_tokens is not None:
            changed.max_output_tokens = self.max_output_tokens
        return changed
