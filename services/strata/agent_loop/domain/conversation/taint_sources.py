"""Places in the context that hold untrusted content."""

from __future__ import annotations

from dataclasses import dataclass

from strata.shared.provenance import Provenance


@dataclass(frozen=True, slots=True)
class TaintSource:
    """A place in the context that holds untrusted content.

    Attributes:
        label: The untrusted label.
        message_id: The message that holds it; empty for a block, a tag or a call that has not run.
        tool_name: The tool that returned it.
        tool_call_id: The call that returned it, or will return it.
        block_label: The memory block that was written under taint.
        archival_tag: The tag of archival memory that was written under taint.
    """

    label: Provenance
    message_id: str = ""
    tool_name: str = ""
    tool_call_id: str = ""
    block_label: str = ""
    archival_tag: str = ""
