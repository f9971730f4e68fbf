"""Groups of agents: list, create, members, runs, change, delete."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from strata.api.agent_loop.v1 import group_service_pb2 as pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.gateway.console.form_pages import FormPage
from strata.gateway.console.form_values import MAX_INT64, whole_number
from strata.gateway.console.forms import FormFields
from strata.gateway.console.views.agent_names import agent_id_of, suggested_names
from strata.gateway.console.visits import ViewRoute, Visit
from strata.protocol.errors import (
    FieldViolation,
    InvalidArgumentError,
    NotFoundError,
    StrataError,
)
from strata.shared.convert.enums import numbers_by_name
from strata.shared.ids import new_id

_PAGE = 50
_RUNS = 20
_MAX_BLOCKS = 500
_BLANK_MEMBERS = 3
_BLANK_BLOCKS = 2
_KINDS = {
    name.lower(): number
    for name, number in numbers_by_name(pb.ManagerType.DESCRIPTOR).items()
    if number
}
_KIND_NAMES = {number: name for name, number in _KINDS.items()}
_NOT_SAVED = "The group was not saved."
_FORM = FormPage(
    "groups/form.html",
    {
        "description": "description",
        "manager": "type",
        "manager.manager_agent_id": "manager",
        "manager.max_turns": "max_turns",
        "manager.termination_token": "termination_token",
        "agent_ids": "member",
        "members": "member",
        "shared_block_ids": "block",
        "shared_blocks": "block",
    },
)


async def list_groups(visit: Visit) -> Response:
    """Lists groups."""
    listing = await visit.services.groups.ListGroups(
        pb.ListGroupsRequest(page_size=_PAGE, page_token=visit.query("page"))
    )
    return visit.page("groups/list.html", groups=listing.groups, next_page=listing.next_page_token)


async def new_group(visit: Visit) -> Response:
    """Shows the form for a new group."""
    form = FormFields({"type": ["round_robin"], "request_id": [new_id("console")]})
    return _FORM.show(visit, form, **await _choices(visit, form, None))


async def create_group(visit: Visit) -> Response:
    """Creates a group from the form."""
    form = visit.form
    try:
        manager, members = await _manager_and_members(visit)
        created = await visit.services.groups.CreateGroup(
            pb.CreateGroupRequest(
                request_id=form.text("request_id"),
                description=form.text("description"),
                manager=manager,
                agent_ids=members,
                shared_block_ids=_block_ids(form),
            )
        )
    except StrataError as error:
        return _FORM.show_again(visit, error, **await _choices(visit, form, None))
    return visit.go_to(f"/groups/{created.group.id}")


async def show_group(visit: Visit) -> Response:
    """Shows the members of a group and its newest runs."""
    group = await _group_of(visit)
    listing = await visit.services.runs.ListRuns(
        run_pb.ListRunsRequest(group_id=group.id, page_size=_RUNS)
    )
    return visit.page("groups/group.html", group=group, runs=listing.runs)


async def edit_group(visit: Visit) -> Response:
    """Shows the form that changes a group."""
    group = await _group_of(visit)
    manager = group.manager
    form = FormFields(
        {
            "revision": [str(group.revision)],
            "description": [group.description],
            "type": [_KIND_NAMES.get(manager.type, "")],
            "manager": [group.manager_agent.name or manager.manager_agent_id],
            "max_turns": [str(manager.max_turns or "")],
            "termination_token": [manager.termination_token],
            "member": [member.name or member.agent_id for member in group.members],
            "block": list(group.shared_block_ids),
        }
    )
    return _FORM.show(visit, form, **await _choices(visit, form, group))


async def update_group(visit: Visit) -> Response:
    """Changes a group, unless it was changed elsewhere since the form was opened."""
    form = visit.form
    try:
        manager, members = await _manager_and_members(visit)
        request = pb.UpdateGroupRequest(
            request_id=new_id("console"),
            group_id=visit.argument("group_id"),
            description=form.text("description"),
            manager=manager,
            members=pb.MemberList(agent_ids=members),
            shared_blocks=pb.SharedBlockList(block_ids=_block_ids(form)),
            expected_revision=whole_number(
                form.text("revision"), "revision", _NOT_SAVED, most=MAX_INT64
            ),
        )
        await visit.services.groups.UpdateGroup(request)
    except StrataError as error:
        choices = await _choices(visit, form, await _group_of(visit))
        return _FORM.show_again(visit, error, **choices)
    return visit.go_to(f"/groups/{request.group_id}")


async def delete_group(visit: Visit) -> Response:
    """Deletes a group; its agents stay."""
    request = pb.DeleteGroupRequest(group_id=visit.argument("group_id"))
    await visit.services.groups.DeleteGroup(request)
    return visit.go_to("/groups")


async def _group_of(visit: Visit) -> pb.Group:
    request = pb.GetGroupRequest(group_id=visit.argument("group_id"))
    group: pb.Group = (await visit.services.groups.GetGroup(request)).group
    return group


async def _choices(visit: Visit, form: FormFields, group: pb.Group | None) -> Mapping[str, object]:
    """Returns the values of a page with the form of a group, other than the fields."""
    listing = await visit.services.blocks.ListBlocks(
        block_pb.ListBlocksRequest(page_size=_MAX_BLOCKS)
    )
    stored = group.shared_block_ids if group is not None else ()
    return {
        "group": group,
        "kinds": [(name, name.replace("_", " ")) for name in _KINDS],
        "agent_names": await suggested_names(visit),
        "members": [*form.texts("member"), *[""] * _BLANK_MEMBERS],
        "blocks": listing.blocks,
        "labels": {block.id: block.label for block in listing.blocks},
        "kept_blocks": list(dict.fromkeys((*stored, *form.texts("block")))),
        "added_blocks": [*form.texts("added_block"), *[""] * _BLANK_BLOCKS],
    }


def _block_ids(form: FormFields) -> list[str]:
    return [*form.texts("block"), *(text.strip() for text in form.texts("added_block"))]


async def _manager_and_members(visit: Visit) -> tuple[pb.ManagerConfig, list[str]]:
    """Returns the manager and the members in a form.

    Raises:
        InvalidArgumentError: The kind is not one of the choices, or agents do not exist.
    """
    form, violations = visit.form, []
    kind = _KINDS.get(form.text("type"))
    if kind is None:
        violations.append(FieldViolation("manager.type", "is not one of the choices"))

    async def agent_id(text: str, path: str) -> str:
        try:
            return await agent_id_of(visit, text.strip())
        except NotFoundError:
            violations.append(FieldViolation(path, f"no agent has the name or id {text!r}"))
            return ""

    manager = pb.ManagerConfig(
        type=kind,  # type: ignore[arg-type]
        manager_agent_id=await agent_id(form.text("manager"), "manager.manager_agent_id"),
        max_turns=whole_number(form.text("max_turns"), "manager.max_turns", _NOT_SAVED),
        termination_token=form.text("termination_token"),
    )
    members = [await agent_id(text, "members") for text in form.texts("member") if text.strip()]
    if violations:
        raise InvalidArgumentError(_NOT_SAVED, violations=violations)
    return manager, members


VIEWS = (
    ViewRoute("/groups", list_groups),
    ViewRoute("/groups/new", new_group),
    ViewRoute("/groups/new", create_group, "POST"),
    ViewRoute("/groups/{group_id}", show_group),
    ViewRoute("/groups/{group_id}/edit", edit_group),
    ViewRoute("/groups/{group_id}/edit", update_group, "POST"),
    ViewRoute("/groups/{group_id}/delete", delete_group, "POST"),
)
