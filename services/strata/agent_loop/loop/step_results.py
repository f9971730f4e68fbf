"""The results of the calls of one reply, and which of them the journal has yet to store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata.agent_loop.domain.model.chat import ToolCall
from strata.agent_loop.domain.ports import Journal
from strata.agent_loop.domain.retries import until_available
from strata.agent_loop.domain.run.journal import JournalKey, StepRecord
from strata.agent_loop.domain.tools import ToolResult


class StepResults:
    """The results of the calls of one reply.

    Args:
        journal: Stores results for a later dispatch.
        key: The run.
        record: The reply, with the results that are journalled already.
        known_results: Results of calls that are not run, by call id.
    """

    def __init__(
        self,
        journal: Journal,
        key: JournalKey,
        record: StepRecord,
        known_results: Mapping[str, ToolResult],
    ) -> None:
        self._journal = journal
        self._key = key
        self._step = record.step
        self._calls = record.reply.tool_calls
        self._by_call = {**known_results, **record.results}
        self._unrecorded: list[ToolResult] = []
        # Whether another dispatch could not obtain one of the unrecorded results again.
        self._must_record = False

    @property
    def by_call(self) -> Mapping[str, ToolResult]:
        """The results by call id."""
        return self._by_call

    def in_order(self) -> list[ToolResult]:
        """Returns the results in the order of the calls."""
        return [self._by_call[call.id] for call in self._calls if call.id in self._by_call]

    def missing(self, calls: Sequence[ToolCall] | None = None) -> list[ToolCall]:
        """Returns the calls that have no result, of some calls or of the whole reply."""
        calls = self._calls if calls is None else calls
        return [call for call in calls if call.id not in self._by_call]

    def add(self, result: ToolResult) -> None:
        """Adds a result that every dispatch obtains without the journal."""
        self._by_call[result.tool_return.tool_call_id] = result

    def add_unrecorded(self, result: ToolResult, *, must_record: bool) -> None:
        """Adds a result that the next `record` writes.

        Args:
            result: The result.
            must_record: Whether another dispatch could not obtain the result again.
        """
        self.add(result)
        self._unrecorded.append(result)
        self._must_record = self._must_record or must_record

    async def record(self) -> None:
        """Writes the unrecorded results to the journal."""
        if self._unrecorded:
            results = list(self._unrecorded)
            await until_available(lambda: self._journal.record(self._key, self._step, results))
            # Only after the write: if it is cancelled, the next `record` writes them again.
            del self._unrecorded[: len(results)]
            self._must_record = False

    async def record_required(self) -> None:
        """Writes the unrecorded results if another dispatch could not obtain one of them again."""
        if self._must_record:
            await self.record()
