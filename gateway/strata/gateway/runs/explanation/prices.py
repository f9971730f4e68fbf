"""Prices of the tokens of models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from strata.shared.usage import Usage


class ModelPrice(BaseModel):
    """Prices per million tokens of one model, all in the same currency."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    input: float = Field(ge=0, description="Tokens of the prompt.")
    output: float = Field(ge=0, description="Tokens of the reply, reasoning included.")
    cached_input: float | None = Field(
        default=None, ge=0, description="Tokens read from the prompt cache; unset: as input."
    )
    cache_write: float | None = Field(
        default=None, ge=0, description="Tokens written to the prompt cache; unset: as input."
    )

    def micros(self, usage: Usage) -> int:
        """Returns the price of the tokens in millionths of the currency."""
        cached, written = usage.cached_input_tokens, usage.cache_write_tokens
        plain = max(usage.prompt_tokens - cached - written, 0)
        read_price = self.input if self.cached_input is None else self.cached_input
        write_price = self.input if self.cache_write is None else self.cache_write
        return round(
            plain * self.input
            + cached * read_price
            + written * write_price
            + usage.completion_tokens * self.output
        )
