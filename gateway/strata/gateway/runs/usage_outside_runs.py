"""Records the tokens of model calls that forwarded calls make outside of runs."""

from __future__ import annotations

from strata.api.agent_loop.v1 import agent_service_pb2
from strata.gateway.runs.domain.runs import RunStore
from strata.protocol.errors import StrataError
from strata.shared.call_usage import CallUsage, Trailing
from strata.shared.context import current_project
from strata.shared.ids import new_id
from strata.shared.logs import get_logger

_log = get_logger(__name__)


class UsageOutsideRuns:
    """Records usage beside that of runs.

    The methods take the request of an answered call, and the trailing metadata of its answer.

    Args:
        store: Sums the usage.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store

    async def of_compaction(self, request: bytes, trailing: Trailing) -> None:
        """Records the usage of a call of `CompactConversation`."""
        spent = CallUsage.from_metadata(trailing)
        # A request that cannot be read was refused, and nothing was spent.
        if spent.model_calls:
            compacting = agent_service_pb2.CompactConversationRequest.FromString(request)
            await self._record(compacting.agent_id, spent)

    async def of_probe(self, _request: bytes, trailing: Trailing) -> None:
        """Records the usage of a call of `ProbeModel`, which belongs to no agent."""
        spent = CallUsage.from_metadata(trailing)
        if spent.model_calls:
            await self._record("", spent)

    async def _record(self, agent_id: str, spent: CallUsage) -> None:
        try:
            await self._store.add_usage(current_project(), new_id("usage"), agent_id, spent)
        except StrataError as error:
            # The caller gets the answer: what it asked for is done.
            _log.error(
                "usage outside of runs not recorded",
                agent_id=agent_id,
                tokens=spent.usage.total_tokens,
                error=repr(error),
            )
