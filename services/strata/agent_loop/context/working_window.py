"""The in-memory window of a turn, and its system message (docs/wire-format.md#rebuilding)."""

from __future__ import annotations

from collections.abc import Mapping

from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.conversation.messages import Message, SummaryPart, Window
from strata.agent_loop.domain.model.chat import TextPart
from strata.agent_loop.domain.ports import ArchivalStats, CommittedStep, MemorySection
from strata.agent_loop.prompts.system_message import (
    Metadata,
    archival_lines,
    assemble,
    is_current,
    shown_archival_lines,
    shows_day,
    tainted_tags,
    without_tags,
)
from strata.protocol.errors import DataLossError
from strata.shared.clock import Clock
from strata.shared.messages import MessageRole
from strata.shared.provenance import Taint
from strata.shared.record_fields import replace


class WorkingWindow:
    """The window of a running turn.

    Args:
        agent: The agent.
        window: The stored window, with the inputs in it.
        stats: Counts of archival memory at the start of the turn; None if unknown.
        clock: For the date.

    Attributes:
        tainted_tags: Untrusted labels of the tags of archival memory that the system message shows,
            by tag.

    Raises:
        DataLossError: The window does not begin with a system message.
    """

    def __init__(
        self, agent: Agent, window: Window, stats: ArchivalStats | None, clock: Clock
    ) -> None:
        if not window.messages or window.messages[0].role is not MessageRole.SYSTEM:
            raise DataLossError(
                "The window of the conversation does not begin with a system message.",
                metadata={"conversation_id": window.conversation_id},
            )
        self._agent = agent
        self._stats = stats
        self._clock = clock
        self._messages = list(window.messages)
        self._system_at_start = window.messages[0]
        self._conversation_id = window.conversation_id
        self._revision = window.revision
        self._section = MemorySection("", None)
        self._message_count = window.message_count
        self._stale = window.metadata_stale
        self.unsaved_text: str | None = None
        self.tainted_tags: Mapping[str, Taint] = {}

    @property
    def messages(self) -> list[Message]:
        """The messages, the system message first."""
        return self._messages

    @property
    def counted(self) -> list[Message]:
        """The messages, with the stored system message that the last token count was made under."""
        return [self._system_at_start, *self._messages[1:]]

    @property
    def read_text(self) -> str:
        """The system message at the start of the turn."""
        return self._system_at_start.text

    @property
    def system_bytes(self) -> int:
        """UTF-8 bytes of the system message."""
        return len(self._messages[0].text.encode("utf-8", "replace"))

    @property
    def call_ids(self) -> list[str]:
        """Ids of all calls in the window."""
        return [call.id for message in self._messages for call in message.tool_calls]

    @property
    def stored(self) -> Window:
        """The stored window; only a rebuilt system message may not be stored yet."""
        return Window(
            self._conversation_id,
            self._agent.id,
            self._revision,
            tuple(self._messages),
            self._message_count,
        )

    def refresh(self, section: MemorySection) -> None:
        """Rebuilds the system message if it shows other memory, old counts or another day.

        The new text is used from now on and stored with the next step. Two parts of the metadata
        are compared: the day, since an outdated one causes wrong answers, and the archival memory
        lines, which others may have changed. Archival counts are those at the start of the turn, so
        that neither the agent's own inserts nor a running import rebuild the message within a turn.
        Without counts the message shows no tags, since their labels are unknown.
        """
        self._section = section
        text = self._messages[0].text
        now = self._clock.now()
        shown = shown_archival_lines(text, self._agent.system, section.text)
        if self._stats is None:
            known = without_tags(shown)
        else:
            known = archival_lines(self._stats, section.block_revisions)
            self.tainted_tags = tainted_tags(self._stats, section.block_revisions)
        current = is_current(text, self._agent.system, section.text) and known == shown
        if current and not self._stale and shows_day(text, now, self._agent.timezone):
            return
        metadata = Metadata(
            now=now,
            timezone=self._agent.timezone,
            last_modified=section.last_modified,
            hidden_messages=self._hidden(),
            archival=known,
        )
        self.unsaved_text = assemble(self._agent.system, section.text, metadata)
        self._messages[0] = replace(self._messages[0], parts=(TextPart(self.unsaved_text),))
        self._stale = False

    def metadata_stale(self, *, changed: bool) -> bool | None:
        """Returns the `metadata_stale` mark to store with a step; None leaves it unchanged.

        Args:
            changed: Whether the step changed archival memory.
        """
        if changed:
            return True
        return None if self.unsaved_text is None else self._stats is None

    def committed(self, step: CommittedStep) -> None:
        """Adds the messages that a step stored."""
        self._messages.extend(step.messages)
        self._message_count = step.message_count
        # Counted here, not taken from the step: if others changed the window meanwhile, for
        # example by pinning a message, a compaction must read it again.
        self._revision += 1
        self.unsaved_text = None

    def compacted(self, window: Window) -> None:
        """Takes over the compacted window and rebuilds the system message.

        Its counts are outdated, and the provider's prompt cache is lost in any case.
        """
        self._messages = list(window.messages)
        self._message_count = window.message_count
        self._revision = window.revision
        self._stale = True
        self.refresh(self._section)

    def _hidden(self) -> int:
        """Returns the number of messages outside the window, without replaced summaries."""
        hidden = self._message_count - len(self._messages)
        summarized_counts = [
            part.message_count
            for message in self._messages
            for part in message.parts
            if isinstance(part, SummaryPart)
        ]
        return min(hidden, sum(summarized_counts)) if summarized_counts else hidden
