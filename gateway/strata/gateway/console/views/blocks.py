"""Core memory: the blocks of an agent, their history, and undoing edits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from starlette.responses import Response

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.gateway.console.form_values import whole_number
from strata.gateway.console.views.agents import agent_of
from strata.gateway.console.visits import ViewRoute, Visit
from strata.protocol.errors import FieldViolation, InvalidArgumentError

_PAGE = 50
_MAX_BLOCKS = 500
_BLAMED_LINES = 1000
_UNCHANGED = "The block was not changed."
_NOT_SHOWN = "The block cannot be shown."
_EDITORS = {
    pb.EDITOR_KIND_USER: "a person or program",
    pb.EDITOR_KIND_AGENT: "the agent",
    pb.EDITOR_KIND_SLEEPTIME_AGENT: "a memory agent",
}


async def memory(visit: Visit) -> Response:
    """Shows the blocks of an agent, now or as they were at a time."""
    agent = await agent_of(visit)
    as_of = visit.query("as_of")
    listing = await visit.services.blocks.ListBlocks(
        pb.ListBlocksRequest(
            agent_id=agent.id,
            page_size=_MAX_BLOCKS,
            as_of_time=_time_in(as_of) if as_of else None,
        )
    )
    return visit.page("memory/blocks.html", agent=agent, blocks=listing.blocks, as_of=as_of)


async def create_block(visit: Visit) -> Response:
    """Creates a block of an agent."""
    agent_id, form = visit.argument("agent_id"), visit.form
    created = await visit.services.blocks.CreateBlock(
        pb.CreateBlockRequest(
            agent_id=agent_id,
            block=pb.NewBlock(
                label=form.text("label").strip(),
                value=form.text("value"),
                description=form.text("description").strip() or None,
                limit=whole_number(form.text("limit"), "limit", "The block was not created."),
                read_only=form.checked("read_only"),
            ),
        )
    )
    return visit.go_to(f"/blocks/{created.block.id}")


async def block(visit: Visit) -> Response:
    """Shows a block with its history, or as it was at a time."""
    block_id, as_of = visit.argument("block_id"), visit.query("as_of")
    current, versions = await asyncio.gather(
        visit.services.blocks.GetBlock(
            pb.GetBlockRequest(block_id=block_id, as_of_time=_time_in(as_of) if as_of else None)
        ),
        visit.services.blocks.ListBlockVersions(
            pb.ListBlockVersionsRequest(
                block_id=block_id, page_size=_PAGE, page_token=visit.query("page")
            )
        ),
    )
    return visit.page(
        "memory/block.html",
        block=current.block,
        as_of=as_of,
        versions=versions.versions,
        next_page=versions.next_page_token,
        editor_name=editor_name,
    )


async def update_block(visit: Visit) -> Response:
    """Changes a block; concurrent changes are merged."""
    block_id, form = visit.argument("block_id"), visit.form
    await visit.services.blocks.UpdateBlock(
        pb.UpdateBlockRequest(
            block_id=block_id,
            value=form.text("value"),
            description=form.text("description"),
            limit=whole_number(form.text("limit"), "limit", _UNCHANGED) or None,
            read_only=form.checked("read_only"),
            clear_taint=form.checked("clear_taint"),
            base_revision=whole_number(form.text("base_revision"), "base_revision", _UNCHANGED),
            reason=form.text("reason").strip(),
        )
    )
    return visit.go_to(f"/blocks/{block_id}")


async def diff(visit: Visit) -> Response:
    """Shows what changed between two revisions of a block."""
    response = await visit.services.blocks.DiffBlock(
        pb.DiffBlockRequest(
            block_id=visit.argument("block_id"),
            from_revision=whole_number(visit.query("from"), "from", _NOT_SHOWN),
            to_revision=whole_number(visit.query("to"), "to", _NOT_SHOWN),
        )
    )
    template = "memory/diff_part.html" if visit.by_htmx else "memory/diff.html"
    return visit.page(
        template, diff=response.diff, block_id=visit.argument("block_id"), to=visit.query("to")
    )


async def blame(visit: Visit) -> Response:
    """Shows who wrote each line of a block."""
    block_id = visit.argument("block_id")
    revision = whole_number(visit.query("revision"), "revision", _NOT_SHOWN)
    current, response = await asyncio.gather(
        visit.services.blocks.GetBlock(pb.GetBlockRequest(block_id=block_id)),
        visit.services.blocks.BlameBlock(
            pb.BlameBlockRequest(
                block_id=block_id,
                revision=revision,
                page_size=_BLAMED_LINES,
                page_token=visit.query("page"),
            )
        ),
    )
    return visit.page(
        "memory/blame.html",
        block=current.block,
        lines=response.lines,
        next_page=response.next_page_token,
        revision=revision,
        editor_name=editor_name,
    )


async def revert(visit: Visit) -> Response:
    """Undoes one edit of a block, or restores a revision."""
    block_id, form = visit.argument("block_id"), visit.form
    request = pb.RevertBlockRequest(block_id=block_id, reason=form.text("reason").strip())
    if form.text("to_revision"):
        request.to_revision = whole_number(form.text("to_revision"), "to_revision", _UNCHANGED)
    else:
        request.revision = whole_number(form.text("revision"), "revision", _UNCHANGED)
    await visit.services.blocks.RevertBlock(request)
    return visit.go_to(f"/blocks/{block_id}")


async def delete_block(visit: Visit) -> Response:
    """Deletes a block; its history stays, and a revert brings it back."""
    request = pb.DeleteBlockRequest(
        block_id=visit.argument("block_id"), reason=visit.form.text("reason").strip()
    )
    await visit.services.blocks.DeleteBlock(request)
    return visit.go_to("/agents")


def editor_name(origin: pb.EditOrigin) -> str:
    """Returns who made an edit."""
    return _EDITORS.get(origin.kind, "unknown")


def _time_in(text: str) -> Timestamp:
    """Returns a time of a form, in UTC unless it names another zone.

    Raises:
        InvalidArgumentError: It is not a time.
    """
    stamp = Timestamp()
    try:
        moment = datetime.fromisoformat(text)
        stamp.FromDatetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            "The time is not valid.",
            violations=[FieldViolation("as_of", "write it like 2026-07-30T14:00")],
        ) from error
    return stamp


VIEWS = (
    ViewRoute("/agents/{agent_id}/memory", memory),
    ViewRoute("/agents/{agent_id}/blocks", create_block, "POST"),
    ViewRoute("/blocks/{block_id}", block),
    ViewRoute("/blocks/{block_id}", update_block, "POST"),
    ViewRoute("/blocks/{block_id}/diff", diff),
    ViewRoute("/blocks/{block_id}/blame", blame),
    ViewRoute("/blocks/{block_id}/revert", revert, "POST"),
    ViewRoute("/blocks/{block_id}/delete", delete_block, "POST"),
)
