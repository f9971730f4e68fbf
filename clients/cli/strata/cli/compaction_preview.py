"""Prints the preview of a compaction, as a table or JSON."""

from __future__ import annotations

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.common.v1 import message_pb2
from strata.cli.output import note, print_json, print_table
from strata.shared.convert.enums import enum_name


def print_preview(preview: pb.PreviewCompactionResponse, *, as_json: bool) -> None:
    """Prints what a compaction would do with each message, as a table or as JSON."""
    if as_json:
        print_json(preview)
        return
    print_table(
        ["outcome", "role", "tokens", "text", "message"],
        [
            (
                enum_name(pb.CompactionOutcome, message.outcome)
                + (", pinned" if message.pinned else ""),
                enum_name(message_pb2.Role, message.role),
                f"{message.tokens:,}",
                message.excerpt,
                message.message_id,
            )
            for message in preview.messages
        ],
        empty="The window contains no messages.",
    )
    listed = len(preview.messages)
    whole = sum(
        total.message_count for total in (preview.kept, preview.summarized, preview.replaced)
    )
    if listed < whole:
        note(f"{listed:,} of {whole:,} messages are listed.")
    if preview.obstacle:
        note(f"Nothing would be removed: {enum_name(pb.CompactionObstacle, preview.obstacle)}.")
        return
    note(
        f"{preview.summarized.message_count:,} messages with {preview.summarized.tokens:,} tokens"
        f" would be summarised; {preview.tokens_kept:,} of {preview.tokens_before:,} tokens stay."
    )
