"""Warning about model names that the server could not check."""

from __future__ import annotations

from strata.api.agent_loop.v1 import model_service_pb2 as pb
from strata.cli.client import GatewayClient
from strata.cli.output import note
from strata.protocol.errors import StrataError


async def warn_of_unchecked_model(client: GatewayClient, handle: str) -> None:
    """Prints a warning if the provider of a model does not answer.

    If it answers, the server refuses a model that the provider does not have.
    """
    try:
        listing = await client.models.ListModels(pb.ListModelsRequest())
    except StrataError as error:
        note(f"The model {handle} could not be checked: {error.message}")
        return
    provider = handle.partition("/")[0]
    if any(endpoint.name == provider and not endpoint.reachable for endpoint in listing.endpoints):
        note(f"Warning: {handle} could not be checked, because {provider} does not answer.")
