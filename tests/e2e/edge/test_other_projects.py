"""Keys of another project and of another organization, at every public method.

The methods and the fields that hold ids are read from the descriptors: new methods are included
automatically, and a new field that names something has to be listed in `hostile.KINDS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from e2e.edge.answers import Answer, ask, judge
from e2e.edge.conftest import Attacker, Store, Tenant
from e2e.edge.contract import Method, public_methods
from e2e.edge.hostile import KINDS, build, holder_of, id_fields, put, text_fields, unknown
from faults.live import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Fields that look like ids but name nothing that is stored under them.
_NO_IDS = frozenset(
    {
        "request_id",  # made by the client
        "external_id",  # made by the client
        "tool_call_id",  # made by the model
        "client_id",  # issued by an OAuth server
        "image_id",  # the digest of the bytes, which only a client with the bytes can know
        "client_message_id",  # made by the client
        *("first_message_id", "last_message_id", "step_id"),  # only the server sets them
    }
)
# Kinds of ids that no method of this release makes.
_NOT_MADE = frozenset({"organization"})


async def test_every_field_that_holds_an_id_has_a_kind() -> None:
    unlisted = {
        f"{method.name}: {path}"
        for method in public_methods().values()
        for path, field in text_fields(method.descriptor.input_type)
        if field.name.endswith(("_id", "_ids")) and field.name not in {*KINDS, *_NO_IDS}
    }
    assert unlisted == set()


async def test_the_other_project_has_something_of_every_kind(stranger: Tenant) -> None:
    assert set(KINDS.values()) - set(stranger.ids) == _NOT_MADE


@pytest.mark.parametrize(
    "who",
    [
        "a project of the same organization",
        "a project of another organization",
        "another organization",
    ],
)
@pytest.mark.parametrize("name", sorted(public_methods()))
async def test_a_key_has_no_access_to_another_project(
    name: str,
    who: str,
    client: Client,
    attackers: Mapping[str, Attacker],
    stranger: Tenant,
    store: Store,
) -> None:
    method, attacker = public_methods()[name], attackers[who]
    await store.rest()
    before = await store.rows_of(stranger.ids["project"])
    assert sum(rows for rows, _ in before.values())
    for request, twin in _attacks(method, attacker, stranger):
        answer = await _ask(client, method, request, attacker)
        judge(method, answer)
        shown = answer.whole_text.encode() + b"".join(answer.responses)
        assert stranger.mark.encode() not in shown
        sent = request.SerializeToString()
        leaked = {kind for kind, id_ in stranger.ids.items() if id_.encode() in shown}
        assert {kind for kind in leaked if stranger.ids[kind].encode() not in sent} == set()
        if answer.status not in {"NOT_FOUND", "PERMISSION_DENIED"}:
            # Any other status must be the answer for ids of no object.
            assert answer.pair == (await _ask(client, method, twin, attacker)).pair, request
    after = await store.rows_of(stranger.ids["project"])
    assert {table: after[table] for table in after if after[table] != before[table]} == {}


def _attacks(method: Method, attacker: Attacker, victim: Tenant) -> Iterator[tuple[Any, Any]]:
    """Returns requests that name all objects of the victim, or one of them.

    Each has a counterpart with ids of no object in place of these.
    """
    kind = method.descriptor.input_type
    yield (
        build(kind, lambda prefix: victim.ids.get(prefix) or unknown(prefix)),
        build(kind, unknown),
    )

    def own() -> Any:
        return build(kind, lambda prefix: attacker.ids.get(prefix) or unknown(prefix))

    for path, (_, field) in id_fields(own()).items():
        prefix = KINDS[field.name]
        if prefix in victim.ids:
            request, twin = own(), own()
            put(*id_fields(request)[path], victim.ids[prefix])
            put(*id_fields(twin)[path], unknown(prefix))
            yield request, twin
    # Also fields that exclude each other; alone they may be too little.
    for path, field in text_fields(kind):
        prefix = KINDS.get(field.name, "")
        if prefix in victim.ids:
            yield (
                _with_one_field(kind, path, field, victim.ids[prefix]),
                _with_one_field(kind, path, field, unknown(prefix)),
            )


def _with_one_field(kind: Descriptor, path: str, field: FieldDescriptor, value: str) -> Any:
    request = message_factory.GetMessageClass(kind)()
    put(holder_of(request, path), field, value)
    return request


async def _ask(client: Client, method: Method, request: Any, attacker: Attacker) -> Answer:
    return await ask(client, method.path, request.SerializeToString(), attacker.metadata)
