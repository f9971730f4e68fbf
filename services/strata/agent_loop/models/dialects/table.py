"""All wire protocols by name. A new one needs a file and an entry here."""

from __future__ import annotations

from strata.agent_loop.domain.model.chat import EndpointType
from strata.agent_loop.models.dialects import (
    anthropic,
    azure,
    bedrock,
    openai,
    openai_responses,
    vertex,
)
from strata.agent_loop.models.dialects.base import Dialect

DIALECTS: dict[EndpointType, Dialect] = {
    dialect.name: dialect
    for dialect in (
        openai.DIALECT,
        openai_responses.DIALECT,
        anthropic.DIALECT,
        azure.DIALECT,
        bedrock.DIALECT,
        vertex.DIALECT,
    )
}


def dialect_of(name: EndpointType) -> Dialect:
    """Returns a wire protocol.

    Raises:
        ValueError: There is no protocol of that name; the message lists the known ones.
    """
    dialect = DIALECTS.get(name)
    if dialect is None:
        raise ValueError(f"unknown endpoint type {name!r}; known are {', '.join(sorted(DIALECTS))}")
    return dialect
