"""Every public method, called with wrong keys and with invalid requests.

The methods are those of the descriptors, the allowed answers those of the protos' comments.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from e2e.edge.answers import Answer, ask, judge
from e2e.edge.conftest import Store, Tenant
from e2e.edge.contract import BUILT, METHODS, UNBUILT, Method, public_methods
from e2e.edge.hostile import KINDS, absurdities, build, id_fields, places, put, unknown
from faults.live import Client, Live
from strata.api.agent_loop.v1 import agent_service_pb2
from strata.api.core_memory.v1 import block_service_pb2
from strata.api.gateway.v1 import admin_service_pb2
from strata.gateway.auth.policy import scopes_of
from strata.shared.scopes import Scope
from strata.shared.settings import MIB

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAMING = [
    name
    for name in BUILT
    if id_fields(build(public_methods()[name].descriptor.input_type, unknown))
]
every_method = pytest.mark.parametrize("name", METHODS)
every_built_method = pytest.mark.parametrize("name", BUILT)


def metadata_of(method: Method, client: Client) -> Sequence[tuple[str, str]]:
    """Returns metadata with the key that a method needs: of a project or an organization."""
    if scopes_of(method.descriptor).isdisjoint(Scope):
        organization: Sequence[tuple[str, str]] = client.as_organization["metadata"]
        return organization
    return client.metadata


def request_of(method: Method, ids: Mapping[str, str]) -> Any:
    """Returns a request with ids of existing objects, where there are some of the kind."""
    return build(method.descriptor.input_type, lambda kind: ids.get(kind) or unknown(kind))


@every_method
async def test_calls_without_a_key_are_refused(
    name: str, client: Client, ids: Mapping[str, str], store: Store
) -> None:
    method = public_methods()[name]
    request = request_of(method, ids).SerializeToString()
    async with store.untouched():
        answer = await ask(client, method.path, request, ())
    judge(method, answer)
    assert answer.pair == ("UNAUTHENTICATED", "CREDENTIALS_MISSING")


@every_method
async def test_wrong_keys_are_refused(
    name: str, live: Live, client: Client, ids: Mapping[str, str], store: Store
) -> None:
    method = public_methods()[name]
    request = request_of(method, ids).SerializeToString()
    key = live.key
    other_end = "0" if key[-1] != "0" else "1"
    headers = [
        ("authorization", f"Bearer {key[:-1]}{other_end}"),
        ("authorization", f"Bearer {key.replace(key[8:16], '00000000', 1)}"),
        ("authorization", "Bearer no-key"),
        ("authorization", f"Basic {key}"),
        ("x-api-key", f"{key} {key}"),
    ]
    async with store.untouched():
        answers = [await ask(client, method.path, request, (header,)) for header in headers]
    for answer in answers:
        judge(method, answer)
        assert answer.pair == ("UNAUTHENTICATED", "CREDENTIALS_INVALID")
        assert key not in answer.whole_text


@pytest.mark.parametrize("name", NAMING)
async def test_an_unknown_id_is_not_found_and_changes_nothing(
    name: str, client: Client, ids: Mapping[str, str], store: Store
) -> None:
    method = public_methods()[name]
    answers = {}
    async with store.untouched():
        for path in id_fields(request_of(method, ids)):
            request = request_of(method, ids)
            holder, field = id_fields(request)[path]
            put(holder, field, unknown(KINDS[field.name]))
            answers[path] = await _asked(client, method, request)
    for answer in answers.values():
        judge(method, answer)
        # Listing the children of a missing object returns nothing; removing a missing object
        # succeeds.
        may_be_well = _has_no_side_effects(method) or ".Detach" in name
        assert answer.status == "NOT_FOUND" or (may_be_well and answer.status == "OK"), answer


async def test_an_agent_that_cannot_be_created_leaves_nothing(
    client: Client, ids: Mapping[str, str], store: Store
) -> None:
    human = block_service_pb2.NewBlock(label="human", value="A second one.")
    request = agent_service_pb2.CreateAgentRequest(blocks=[human, human])
    shared = agent_service_pb2.CreateAgentRequest(blocks=[human], block_ids=[ids["block"]])
    label = await client.blocks.GetBlock(
        block_service_pb2.GetBlockRequest(block_id=ids["block"]), **client.call
    )
    shared.blocks[0].label = label.block.label
    tool = agent_service_pb2.CreateAgentRequest(tools=["no_such_tool"], blocks=[human])
    method = public_methods()["AgentService.CreateAgent"]
    async with store.untouched():
        answers = [await _asked(client, method, message) for message in (request, shared, tool)]
    for answer in answers:
        judge(method, answer)
    assert [answer.status for answer in answers[1:]] == ["ALREADY_EXISTS", "NOT_FOUND"]
    assert answers[0].status in {"ALREADY_EXISTS", "INVALID_ARGUMENT"}


@pytest.mark.parametrize("name", NAMING)
async def test_an_id_of_another_kind_is_refused_with_its_field(
    name: str, client: Client, ids: Mapping[str, str], store: Store
) -> None:
    method = public_methods()[name]
    strange = ["step-" + str(uuid.uuid4()), "'; DROP TABLE runs; --", "agent-1", "\u202e" * 40]
    answers = {}
    async with store.untouched():
        for path in id_fields(request_of(method, ids)):
            for value in strange:
                request = request_of(method, ids)
                put(*id_fields(request)[path], value)
                answers[path, value] = await _asked(client, method, request)
    for (path, value), answer in answers.items():
        judge(method, answer)
        assert answer.pair == ("INVALID_ARGUMENT", "INVALID_ID"), (path, answer)
        field = path.rpartition(".")[2]
        assert any(field in violated for violated, _ in answer.violations), (path, answer)
        assert answer.metadata["expected_prefix"] == KINDS[field]
        assert value[:20] in answer.metadata["id"]


@pytest.mark.parametrize("name", NAMING)
async def test_data_of_another_project_is_reported_as_missing(
    name: str, client: Client, ids: Mapping[str, str], stranger: Tenant, store: Store
) -> None:
    method = public_methods()[name]
    for path in id_fields(request_of(method, ids)):
        kind = KINDS[path.rpartition(".")[2]]
        if kind not in stranger.ids:
            continue
        answers = []
        async with store.untouched():
            for value in (stranger.ids[kind], unknown(kind)):
                request = request_of(method, ids)
                put(*id_fields(request)[path], value)
                answers.append(_without(await _asked(client, method, request), value))
        assert answers[0] == answers[1], path


@every_method
async def test_an_empty_request_gets_a_valid_status(
    name: str, client: Client, ids: Mapping[str, str], store: Store
) -> None:
    method = public_methods()[name]
    before = await store.state()
    answer = await ask(client, method.path, b"", metadata_of(method, client))
    judge(method, answer)
    if answer.status == "OK":
        # An agent needs only defaults; every other change needs fields.
        assert _has_no_side_effects(method) or name == "AgentService.CreateAgent"
    if name != "AgentService.CreateAgent":
        assert await store.state() == before


@pytest.mark.parametrize(
    "name", [name for name in BUILT if public_methods()[name].descriptor.client_streaming]
)
async def test_a_stream_without_requests_gets_a_valid_status(
    name: str, client: Client, store: Store
) -> None:
    method = public_methods()[name]
    async with store.untouched():
        answer = await ask(client, method.path, None, metadata_of(method, client))
    judge(method, answer)


@pytest.mark.parametrize(
    "name",
    # A stream is read by its method alone, and not at all by a method that is not implemented.
    [
        name
        for name in METHODS
        if name in BUILT or not public_methods()[name].descriptor.client_streaming
    ],
)
async def test_a_request_over_the_limit_is_refused(name: str, client: Client, store: Store) -> None:
    method = public_methods()[name]
    async with store.untouched():
        # No message has this field number: the request would be valid if it were smaller.
        size = 4 * MIB
        request = b"\xfa\xff\xff\xff\x0f" + _varint(size) + bytes(size)
        answer = await ask(client, method.path, request, metadata_of(method, client))
    judge(method, answer)
    assert answer.pair == ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")
    assert answer.metadata["limit_bytes"] == str(4 * MIB)


@every_method
async def test_garbage_is_refused(name: str, client: Client, store: Store) -> None:
    method = public_methods()[name]
    first = method.descriptor.input_type.fields_by_number.get(1)
    garbage = [b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f", b"\x0b"]
    if first is not None and first.type == FieldDescriptor.TYPE_STRING:
        garbage.append(b"\x0a\x02\xc3\x28")  # not UTF-8
    async with store.untouched():
        for request in garbage:
            answer = await ask(client, method.path, request, metadata_of(method, client))
            judge(method, answer)
            refused = {("INVALID_ARGUMENT", "MALFORMED_MESSAGE")}
            if name in UNBUILT and method.descriptor.client_streaming:
                refused.add(("UNIMPLEMENTED", "NOT_BUILT"))
            assert answer.pair in refused, request


@every_built_method
async def test_an_absurd_value_gets_a_valid_status_and_never_internal(
    name: str, client: Client, ids: Mapping[str, str]
) -> None:
    method = public_methods()[name]
    # Methods that would delete or start something get no ids of stored objects.
    spared = {} if method.descriptor.name.startswith(("Delete", "Purge", "Send", "Start")) else ids
    for path, (_, field) in places(request_of(method, spared)).items():
        for value in absurdities(field):
            request = request_of(method, spared)
            put(*places(request)[path], value)
            answer = await _asked(client, method, request)
            judge(method, answer)
    assert (await _asked(client, method, request_of(method, spared))).status != "INTERNAL"


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in BUILT
        if "request_id" in public_methods()[name].descriptor.input_type.fields_by_name
    ],
)
async def test_the_contract_names_the_error_of_a_reused_request_id(name: str) -> None:
    assert ("ALREADY_EXISTS", "REQUEST_ID_REUSED") in public_methods()[name].promised


@pytest.mark.parametrize("name", sorted(UNBUILT))
async def test_unbuilt_methods_return_unimplemented(
    name: str, client: Client, ids: Mapping[str, str], store: Store
) -> None:
    method = public_methods()[name]
    async with store.untouched():
        answer = await _asked(client, method, request_of(method, ids))
    assert answer.pair == ("UNIMPLEMENTED", "NOT_BUILT")
    assert answer.metadata["method"] == method.path.lstrip("/")
    judge(method, answer)


async def test_every_built_method_is_implemented(client: Client) -> None:
    answers = {
        name: await ask(client, method.path, b"", metadata_of(method, client))
        for name, method in public_methods().items()
        if name in BUILT
    }
    assert [name for name, answer in answers.items() if answer.status == "UNIMPLEMENTED"] == []


@pytest.mark.parametrize(
    "path",
    [
        "/strata.api.recall.v1.MessageService/DropMessages",
        "/strata.api.gateway.v1.RunService/sendmessage",
        "/strata.api.nothing.v1.NothingService/Nothing",
        "/strata.api.recall.v1.WindowService/BeginTurn",
        "/strata.api.agent_loop.v1.TurnService/ExecuteRun",
        "/strata.api.gateway.v1.RunFollowService/FollowRun",
        "/strata.api.core_memory.v1.ContextService/ReleaseAgent",
        "/strata.api.archival.v1.AgentArchiveService/ReleaseAgent",
        "/strata.api.archival.v1.FileIndexService/DropFiles",
        "/strata.api.tool_execution.v1.ExecutionService/ExecuteTools",
        "//",
        "/../../etc/passwd",
    ],
)
async def test_internal_methods_do_not_exist_for_clients(
    path: str, client: Client, store: Store
) -> None:
    async with store.untouched():
        refused = await ask(client, path, b"", ())
        answer = await ask(client, path, b"", client.metadata)
    assert refused.pair == ("UNAUTHENTICATED", "CREDENTIALS_MISSING")
    assert answer.pair == ("UNIMPLEMENTED", "NOT_BUILT")


async def test_a_key_without_the_scope_is_refused(
    client: Client, live: Live, ids: Mapping[str, str], store: Store
) -> None:
    made = await client.admin.CreateApiKey(
        admin_service_pb2.CreateApiKeyRequest(name="reader", scopes=["read"]), **client.call
    )
    reader = (("x-api-key", made.secret),)
    async with store.untouched():
        for name in METHODS:
            method = public_methods()[name]
            if _has_no_side_effects(method):
                continue
            answer = await ask(
                client, method.path, request_of(method, ids).SerializeToString(), reader
            )
            judge(method, answer)
            assert answer.pair == ("PERMISSION_DENIED", "SCOPE_MISSING"), name


async def _asked(client: Client, method: Method, request: Any) -> Answer:
    return await ask(client, method.path, request.SerializeToString(), metadata_of(method, client))


def _has_no_side_effects(method: Method) -> bool:
    level = method.descriptor.GetOptions().idempotency_level
    return bool(level == MethodOptions.NO_SIDE_EFFECTS)


def _without(answer: Answer, value: str) -> tuple[object, ...]:
    """Returns an answer without the id of the request."""
    return (
        answer.pair,
        answer.whole_text.replace(value, "ID"),
        [response.replace(value.encode(), b"ID") for response in answer.responses],
    )


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
