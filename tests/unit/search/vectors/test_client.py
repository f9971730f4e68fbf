"""How the client of the vector index connects, limits its calls, and reports failures."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from certificates import self_signed
from qdrant_server import recording_server
from strata.protocol.errors import InternalError, StrataError, UnavailableError
from strata.shared.search.qdrant_wire import collections, common, points
from strata.shared.search.vectors.client import QdrantClient, connect
from strata.shared.search.vectors.qdrant import QdrantIndex
from strata.shared.search.vectors.qdrant_errors import EngineDownError

STATUSES = grpc.StatusCode


async def use_every_method(client: QdrantClient) -> None:
    await client.collection_exists("a")
    await client.create_collection(collections.CreateCollection(collection_name="a"))
    await client.delete_collection("a")
    await client.collection_info("a")
    await client.collection_names()
    await client.aliases()
    await client.change_aliases([])
    await client.create_field_index(points.CreateFieldIndexCollection(collection_name="a"))
    await client.upsert(points.UpsertPoints(collection_name="a"))
    await client.delete("a", common.Filter())
    await client.count("a", common.Filter(), exact=True)
    await client.query_batch(points.QueryBatchPoints(collection_name="a"))


async def test_all_calls_have_the_key_and_no_deadline_of_their_own() -> None:
    async with recording_server() as server:
        client = connect(f"http://127.0.0.1:{server.port}", "secret")
        await use_every_method(client)
        await client.close()
    assert len(server.calls) == 12
    assert not any(call.has_deadline for call in server.calls)
    assert {call.api_key for call in server.calls} == {"secret"}


async def test_without_a_key_no_metadata_is_sent() -> None:
    async with recording_server() as server:
        client = connect(f"http://127.0.0.1:{server.port}")
        await client.aliases()
        await client.close()
    assert [call.api_key for call in server.calls] == [None]


@pytest.mark.parametrize(
    ("url", "target"),
    [("http://engine", "engine:6334"), ("http://engine:7001/path", "engine:7001")],
)
async def test_the_port_is_taken_from_the_address_or_is_the_grpc_default(
    url: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = []
    insecure_channel = grpc.aio.insecure_channel

    def recorded(address: str, options: Any) -> grpc.aio.Channel:
        targets.append(address)
        return insecure_channel(address, options)

    monkeypatch.setattr(grpc.aio, "insecure_channel", recorded)
    await connect(url).close()
    assert targets == [target]


async def test_an_https_address_is_connected_to_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = (path.read_bytes() for path in self_signed(tmp_path, ["localhost"]))
    trusting = partial(grpc.ssl_channel_credentials, root_certificates=certificate)
    monkeypatch.setattr(grpc, "ssl_channel_credentials", trusting)
    credentials = grpc.ssl_server_credentials([(key, certificate)])
    async with recording_server(credentials) as server:
        client = connect(f"https://localhost:{server.port}", "secret")
        await client.aliases()
        await client.close()
    assert [call.api_key for call in server.calls] == ["secret"]


async def test_a_message_may_be_larger_than_the_limit_of_grpc() -> None:
    large = points.UpsertPoints(collection_name="a" * 5_000_000)
    listed = collections.CollectionDescription(name="b" * 5_000_000)
    async with recording_server() as server:
        server.replies["List"] = collections.ListCollectionsResponse(collections=[listed])
        client = connect(f"http://127.0.0.1:{server.port}")
        await client.upsert(large)
        names = await client.collection_names()
        await client.close()
    assert server.calls[0].request == large
    assert names == [listed.name]


async def failure(status: grpc.StatusCode, *trailing: tuple[str, str]) -> StrataError:
    """Returns the error of a call that the server ends with a status."""
    async with recording_server() as server:
        server.failure = (status, trailing)
        index = QdrantIndex(connect(f"http://127.0.0.1:{server.port}"))
        with pytest.raises(StrataError) as caught:
            await index.check()
        await index.close()
    return caught.value


@pytest.mark.parametrize(
    ("trailing", "seconds"),
    [
        ((("retry-after", "7"),), 7.0),
        ((("retry-after", "soon"),), 1.0),
        ((("retry-after", "0"),), 1.0),
        ((), 1.0),
    ],
)
async def test_the_retry_delay_of_an_overloaded_engine_is_passed_on(
    trailing: tuple[tuple[str, str], ...], seconds: float
) -> None:
    error = await failure(STATUSES.RESOURCE_EXHAUSTED, *trailing)
    assert isinstance(error, UnavailableError)
    assert error.retry_after == seconds
    assert ("overloaded" in error.message) == (seconds == 7.0)
    # Searches of an engine that lacks disk space continue: the circuit breaker does not count this.
    assert isinstance(error, EngineDownError) == (seconds == 7.0)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (STATUSES.INVALID_ARGUMENT, InternalError),
        (STATUSES.FAILED_PRECONDITION, InternalError),
        (STATUSES.UNIMPLEMENTED, InternalError),
        (STATUSES.NOT_FOUND, UnavailableError),
        (STATUSES.UNAUTHENTICATED, UnavailableError),
        (STATUSES.UNAVAILABLE, UnavailableError),
        (STATUSES.INTERNAL, UnavailableError),
    ],
)
async def test_each_status_of_the_engine_is_mapped_to_an_error(
    status: grpc.StatusCode, kind: type[StrataError]
) -> None:
    assert isinstance(await failure(status), kind)


async def test_a_call_is_repeated_once_after_a_broken_connection() -> None:
    async with recording_server() as server:
        server.failure = (STATUSES.UNAVAILABLE, ())
        index = QdrantIndex(connect(f"http://127.0.0.1:{server.port}"))
        with pytest.raises(UnavailableError):
            await index.check()
        assert len(server.taken()) == 2
        server.failure = (STATUSES.DEADLINE_EXCEEDED, ())
        with pytest.raises(UnavailableError):
            await index.check()
        assert len(server.taken()) == 1
        await index.close()
