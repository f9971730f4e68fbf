"""Compacts one window: plan, summarise, swap.

Recall stores the summary and the new window with one statement, fenced by the run's attempt and by
the revision that the plan was made on. A process that dies leaves either the old window or the new
one; a later dispatch that finds the new one has nothing to do.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from strata.agent_loop.compaction.plan import Obstacle, Plan, plan
from strata.agent_loop.compaction.summarizer import Summarizer, Summary
from strata.agent_loop.compaction.transcript import clip
from strata.agent_loop.context.packaging import pack_summary
from strata.agent_loop.context.requests import View
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.conversation.messages import Message, SummaryPart, Window
from strata.agent_loop.domain.conversation.taint import taint_of_messages
from strata.agent_loop.domain.ports import Compacted, Recall, WindowSwap
from strata.agent_loop.domain.retries import until_available
from strata.agent_loop.domain.run.journal import JournalKey
from strata.protocol.errors import AbortedError, Reason
from strata.shared.clock import Clock
from strata.shared.ids import new_id
from strata.shared.logs import get_logger
from strata.shared.messages import MessageRole
from strata.shared.metric_names import COMPACTION_SECONDS, COMPACTIONS
from strata.shared.provenance import Provenance, Taint
from strata.shared.telemetry import Telemetry

MIN_SUMMARISED_SPACE = 3_000
"""Bytes of space for messages below which the summary is an extract, without a model call. In so
little space messages are evicted in almost every turn, and each turn would pay for a summary."""

MAX_SWAPS = 3
"""Attempts to swap a window that others change at the same time (a pin, a manual compaction)."""

_SHRINK = 0.9

_log = get_logger(__name__)


class Compactor:
    """Compacts the windows of one agent.

    Args:
        agent: The agent, with its compaction settings.
        summarizer: Writes the summaries.
        recall: Stores the windows.
        clock: The clock.
        telemetry: Gets the number and the time of compactions; None for no metrics.
    """

    def __init__(
        self,
        agent: Agent,
        summarizer: Summarizer,
        recall: Recall,
        clock: Clock,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._agent = agent
        self._summarizer = summarizer
        self._recall = recall
        self._clock = clock
        self._telemetry = telemetry or Telemetry()

    async def compact(
        self, window: Window, view: View, space: float, key: JournalKey | None
    ) -> Compacted | None:
        """Replaces older messages of a window by a summary; None if no message may leave it.

        Args:
            window: The stored window.
            view: How its messages are shown.
            space: Bytes for all messages but the system message; below `MIN_SUMMARISED_SPACE` the
                summary is an extract, except in a manual compaction.
            key: The dispatch that compacts; None for a manual compaction.

        Raises:
            AbortedError: STALE_ATTEMPT; REVISION_MISMATCH if the window changed during every
                attempt.
            StrataError: Recall refused the window; in a manual compaction also if recall cannot
                be reached. A turn retries until it can.
        """
        summarized_plan: Plan | None = None
        started = self._clock.monotonic()
        for swap in range(1, MAX_SWAPS + 1):
            planned = plan(window.messages, view, space, self._agent.compaction, forced=key is None)
            if isinstance(planned, Obstacle):
                return None
            if summarized_plan is None or not _covers(summarized_plan, planned):
                limit = min(self._agent.compaction.limit_chars, planned.summary_bytes)
                summary = await self._summarizer.summarise(
                    planned.evicted,
                    planned.earlier,
                    limit,
                    ask_model=key is None or space >= MIN_SUMMARISED_SPACE,
                )
                summarized_plan = planned
            summarized = (*_removed_earlier(window, planned), *summarized_plan.evicted)
            message = self._message(
                window, planned, summary.text, taint_of_messages(summarized), key
            )
            kept_ids = tuple(message.id for message in planned.kept)
            change = WindowSwap(window.conversation_id, key, window.revision, message, kept_ids)
            try:
                swapped = await self._ask_recall(
                    key, functools.partial(self._recall.swap_window, change)
                )
            except AbortedError as error:
                if error.reason is not Reason.REVISION_MISMATCH or swap == MAX_SWAPS:
                    raise
                window = await self._ask_recall(
                    key, functools.partial(self._recall.get_window, window.conversation_id)
                )
                continue
            self._note_compaction(planned, summary, self._clock.monotonic() - started)
            return Compacted(swapped, _stored_summary(swapped, message))
        raise AssertionError("the last swap succeeds or raises")

    async def _ask_recall(
        self, key: JournalKey | None, call: Callable[[], Awaitable[Window]]
    ) -> Window:
        if key is None:
            return await call()
        # Retried, since the next attempt of the run would have to pay for another summary.
        return await until_available(call)

    def _message(
        self, window: Window, planned: Plan, text: str, taint: Taint, key: JournalKey | None
    ) -> Message:
        now = self._clock.now()
        size = planned.summary_bytes
        fitting = clip(text, self._agent.compaction.limit_chars)
        while fitting and _packed_size(fitting, now, self._agent.timezone) > size:
            fitting = clip(text, int(len(fitting) * _SHRINK))
        return Message(
            id=new_id("message"),
            role=MessageRole.SUMMARY,
            parts=(_part(planned, fitting),),
            conversation_id=window.conversation_id,
            agent_id=window.agent_id,
            run_id=key.run_id if key is not None else "",
            provenance=(Provenance.SYSTEM, *taint),
            create_time=now,
        )

    def _note_compaction(self, planned: Plan, summary: Summary, seconds: float) -> None:
        self._telemetry.counter(COMPACTIONS, summary=summary.rung).inc()
        self._telemetry.histogram(COMPACTION_SECONDS).observe(seconds)
        _log.info(
            "a window was compacted",
            agent_id=self._agent.id,
            evicted=len(planned.evicted),
            kept=len(planned.kept),
            rung=summary.rung,
        )


def _removed_earlier(window: Window, planned: Plan) -> Sequence[Message]:
    """Returns all messages that the summary replaces, including earlier summaries."""
    kept_ids = {message.id for message in planned.kept}
    return [message for message in window.messages[1:] if message.id not in kept_ids]


def _covers(earlier: Plan, planned: Plan) -> bool:
    """Returns whether the summary of one plan covers all messages that another plan evicts."""
    summarised = {message.id for message in earlier.evicted}
    same = earlier.earlier == planned.earlier
    return same and all(message.id in summarised for message in planned.evicted)


def _part(planned: Plan, text: str) -> SummaryPart:
    ends = [(m.sequence, m.id) for m in (planned.evicted[0], planned.evicted[-1])]
    for part in planned.earlier:
        ends += [
            (part.first_sequence, part.first_message_id),
            (part.last_sequence, part.last_message_id),
        ]
    (first, first_id), (last, last_id) = min(ends), max(ends)
    count = len(planned.evicted) + sum(part.message_count for part in planned.earlier)
    return SummaryPart(text, first, last, count, first_id, last_id)


def _packed_size(text: str, create_time: datetime, timezone: str) -> int:
    return len(pack_summary(text, create_time, timezone).encode("utf-8", "replace"))


def _stored_summary(window: Window, summary: Message) -> Message:
    return next((m for m in window.messages if m.id == summary.id), summary)
