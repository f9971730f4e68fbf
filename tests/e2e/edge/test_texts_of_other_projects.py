"""Page tokens, request ids, names and other texts of another project, at every public method.

The methods and their fields are read from the descriptors. A new list has to be long enough in
`furnished_twice` for a page token, and new text fields are included automatically.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf import message_factory

from e2e.edge.answers import Answer, ask, judge
from e2e.edge.conftest import Attacker, Store, Tenant, furnish, new_project
from e2e.edge.contract import BUILT, Method, public_methods
from e2e.edge.hostile import KINDS, build, holder_of, put, text_fields, unknown
from faults.live import Client, Live
from strata.api.archival.v1 import passage_service_pb2
from strata.api.core_memory.v1 import block_service_pb2, file_service_pb2
from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.gateway.auth.policy import scopes_of
from strata.shared.scopes import Scope

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAME_ORGANIZATION = "a project of the same organization"
_OF_PROJECTS = [
    name for name in BUILT if not scopes_of(public_methods()[name].descriptor).isdisjoint(Scope)
]
PAGED = [
    name
    for name in _OF_PROJECTS
    if "page_token" in public_methods()[name].descriptor.input_type.fields_by_name
    # Tools of an MCP server are listed after a connection; here there is none. There is no model
    # either, without which a run makes no second step and no memory agent reads. A schedule has
    # ticks when it is due.
    and name
    not in {
        "McpService.ListMcpTools",
        "RunService.GetMemoryStatus",
        "RunService.ListSteps",
        "ScheduleService.ListScheduleTicks",
    }
]
REPEATABLE = [
    name
    for name in _OF_PROJECTS
    if "request_id" in public_methods()[name].descriptor.input_type.fields_by_name
]
# Deeper texts of a request are the parts of messages, which are content.
_DEPTH = 2


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def furnished_twice(client: Client, live: Live) -> Tenant:
    """A project with two objects of every kind that can be listed."""
    mark = f"mark-{uuid.uuid4().hex}"
    project_id, key_id, secret = await new_project(client, mark, client.as_organization)
    async with Client(live.runtime.address, secret) as other:
        await furnish(other, f"{mark} first", "first")
        ids = await furnish(other, mark)
        await other.admin.CreateApiKey(pb.CreateApiKeyRequest(name=mark), **other.call)
        await other.blocks.UpdateBlock(
            block_service_pb2.UpdateBlockRequest(
                block_id=ids["block"], value=f"{mark}\n{mark}", description=mark
            ),
            **other.call,
        )
        await other.passages.InsertPassage(
            passage_service_pb2.InsertPassageRequest(
                agent_id=ids["agent"], passage=passage_service_pb2.NewPassage(text=f"{mark} 2")
            ),
            **other.call,
        )
        header = file_service_pb2.UploadFileHeader(folder_id=ids["folder"], name="more.txt")
        await other.files.UploadFile(
            iter(
                [
                    file_service_pb2.UploadFileRequest(header=header),
                    file_service_pb2.UploadFileRequest(chunk=mark.encode()),
                ]
            ),
            **other.call,
        )
        await other.passages.UpdatePassage(
            passage_service_pb2.UpdatePassageRequest(
                passage_id=ids["passage"], text=f"{mark} again", expected_revision=1
            ),
            **other.call,
        )
    return Tenant(secret, {**ids, "project": project_id, "key": key_id}, mark)


def metadata_of(tenant: Tenant) -> Sequence[tuple[str, str]]:
    return (("x-api-key", tenant.key),)


def leaked(tenant: Tenant, request: Any, answer: Answer) -> set[str]:
    """Returns the kinds of ids, and the mark, that an answer contains and the request does not."""
    shown = answer.whole_text.encode() + b"".join(answer.responses)
    sent = request.SerializeToString()
    hidden = {kind: id_.encode() for kind, id_ in tenant.ids.items()} | {
        "mark": tenant.mark.encode()
    }
    return {kind for kind, text in hidden.items() if text in shown and text not in sent}


async def asked(client: Client, method: Method, request: Any, metadata: Any) -> Answer:
    answer = await ask(client, method.path, request.SerializeToString(), metadata)
    judge(method, answer)
    return answer


def request_for(method: Method, ids: Mapping[str, str]) -> Any:
    return build(method.descriptor.input_type, lambda kind: ids.get(kind) or unknown(kind))


@pytest.mark.parametrize("name", PAGED)
async def test_a_page_token_of_another_project_returns_none_of_its_rows(
    name: str, client: Client, attackers: Mapping[str, Attacker], furnished_twice: Tenant
) -> None:
    method, victim = public_methods()[name], furnished_twice
    request, token = await _first_page(client, method, victim)
    assert token, "a list needs two objects: add them to `furnished_twice`"
    for attacker in attackers.values():
        for ids in (victim.ids, attacker.ids):
            stolen = type(request)()
            stolen.CopyFrom(request)
            for field, _ in request.ListFields():
                kind = KINDS.get(field.name)
                if kind is not None:
                    setattr(stolen, field.name, ids.get(kind) or unknown(kind))
            stolen.page_token = token
            answer = await asked(client, method, stolen, attacker.metadata)
            assert leaked(victim, stolen, answer) == set()


async def _first_page(client: Client, method: Method, tenant: Tenant) -> tuple[Any, str]:
    """A request with a page of one, and the token of the next page; empty if there is none."""
    whole = request_for(method, tenant.ids)
    for narrowing in [field.name for field, _ in whole.ListFields() if field.name not in KINDS]:
        whole.ClearField(narrowing)
    whole.page_size = 1
    named = [field.name for field, _ in whole.ListFields() if field.name in KINDS]
    # Each id narrows the list.
    for kept in product((True, False), repeat=len(named)):
        request = type(whole)()
        request.CopyFrom(whole)
        for field, keep in zip(named, kept, strict=True):
            if not keep:
                request.ClearField(field)
        answer = await asked(client, method, request, metadata_of(tenant))
        if answer.status == "OK":
            response: Any = message_factory.GetMessageClass(method.descriptor.output_type)
            token = response.FromString(answer.responses[0]).next_page_token
            if token:
                return request, token
    return whole, ""


@pytest.mark.parametrize("name", REPEATABLE)
async def test_a_request_id_used_by_another_project_counts_as_new(
    name: str,
    client: Client,
    live: Live,
    attackers: Mapping[str, Attacker],
    furnished_twice: Tenant,
) -> None:
    method, victim = public_methods()[name], furnished_twice
    attacker = attackers[SAME_ORGANIZATION]
    if method.descriptor.name.startswith(("Delete", "Purge", "Detach")):
        # The call may delete objects, so the next test cannot use them.
        mark = f"mark-{uuid.uuid4().hex}"
        project_id, key_id, secret = await new_project(client, mark, client.as_organization)
        async with Client(live.runtime.address, secret) as other:
            ids = await furnish(other, mark)
        victim = Tenant(secret, {**ids, "project": project_id, "key": key_id}, mark)
    # The same request that names the other project's objects, and one without them.
    nothing: Mapping[str, str] = {}
    for number, named in enumerate((victim.ids, nothing)):
        request = request_for(method, victim.ids)
        request.request_id = f"{victim.mark}-{name}-{number}"
        await asked(client, method, request, metadata_of(victim))
        stolen, twin = request_for(method, named), request_for(method, named)
        stolen.request_id = request.request_id
        answer = await asked(client, method, stolen, attacker.metadata)
        assert leaked(victim, stolen, answer) == set()
        assert answer.pair == (await asked(client, method, twin, attacker.metadata)).pair


@pytest.mark.parametrize("name", _OF_PROJECTS)
async def test_no_text_of_a_request_reads_or_changes_data_of_another_project(
    name: str,
    client: Client,
    attackers: Mapping[str, Attacker],
    stranger: Tenant,
    store: Store,
) -> None:
    method, attacker = public_methods()[name], attackers[SAME_ORGANIZATION]
    texts = {**stranger.ids, "name": stranger.mark}
    await store.rest()
    before = await store.rows_of(stranger.ids["project"])
    for path, field in text_fields(method.descriptor.input_type):
        holder = field.containing_type
        in_map = holder is not None and holder.GetOptions().map_entry
        own = field.name in KINDS or field.name == "request_id"
        if own or in_map or path.count(".") >= _DEPTH:
            continue
        pairs = {}
        for kind, text in {**texts, "nothing": f"nothing-{uuid.uuid4()}"}.items():
            request = request_for(method, {})
            put(holder_of(request, path), field, text)
            answer = await asked(client, method, request, attacker.metadata)
            assert leaked(stranger, request, answer) == set(), path
            pairs[kind] = answer.pair
        assert len(set(pairs.values())) == 1, (path, pairs)
    after = await store.rows_of(stranger.ids["project"])
    assert {table: after[table] for table in after if after[table] != before[table]} == {}
