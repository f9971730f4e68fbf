"""Reflection of both versions, as clients like grpcurl use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2 as pb

from built_programs import built_program
from strata.api.archival.v1 import passage_service_pb2
from strata.gateway.servicers.proxy import proxied_service
from strata.shared.interceptors.auth import TokenAuthenticator
from strata.shared.server import GrpcServer
from strata.shared.service import Service
from strata.shared.settings import ServiceSettings

GRPCURL = built_program("grpcurl")
VERSIONS = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
PASSAGES = "strata.api.archival.v1.PassageService"
NOT_FOUND = grpc.StatusCode.NOT_FOUND.value[0]


@pytest.fixture
async def address(keys: Any) -> AsyncIterator[str]:
    descriptor = passage_service_pb2.DESCRIPTOR.services_by_name["PassageService"]
    async with grpc.aio.insecure_channel("127.0.0.1:1") as nowhere:
        service = Service("front", [proxied_service(descriptor, nowhere)])
        server = GrpcServer(service, ServiceSettings(), TokenAuthenticator(keys.verifier))
        await server.start()
        yield server.address
        await server.stop(0)


async def ask(address: str, version: str, **question: str) -> pb.ServerReflectionResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        method: Any = channel.stream_stream(
            f"/{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=pb.ServerReflectionRequest.SerializeToString,
            response_deserializer=pb.ServerReflectionResponse.FromString,
        )
        questions = [pb.ServerReflectionRequest(**question)]  # type: ignore[arg-type]
        (answer,) = [response async for response in method(iter(questions))]
        assert isinstance(answer, pb.ServerReflectionResponse)
        return answer


@pytest.mark.parametrize("version", VERSIONS)
async def test_both_versions_list_all_services(address: str, version: str) -> None:
    answer = await ask(address, version, list_services="")
    names = {service.name for service in answer.list_services_response.service}
    assert names == {
        PASSAGES,
        "grpc.health.v1.Health",
        *(f"{version}.ServerReflection" for version in VERSIONS),
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        (PASSAGES, "strata/api/archival/v1/passage_service.proto"),
        (f"{PASSAGES}.SearchPassages", "strata/api/archival/v1/passage_service.proto"),
        (
            "strata.api.archival.v1.SearchPassagesRequest",
            "strata/api/archival/v1/passage_service.proto",
        ),
        (
            "strata.api.archival.v1.SearchPassagesRequest.query",
            "strata/api/archival/v1/passage_service.proto",
        ),
        ("strata.api.common.v1.attempt_seconds", "strata/api/common/v1/call_options.proto"),
        ("grpc.reflection.v1.ServerReflection", None),
        ("grpc.reflection.v1.ServerReflection.ServerReflectionInfo", None),
        ("grpc.health.v1.Health.Check", None),
    ],
)
async def test_symbols_of_every_kind_are_resolved(
    address: str, version: str, symbol: str, file: str | None
) -> None:
    answer = await ask(address, version, file_containing_symbol=symbol)
    assert not answer.HasField("error_response"), answer.error_response
    raw = answer.file_descriptor_response.file_descriptor_proto
    files = [descriptor_pb2.FileDescriptorProto.FromString(raw_file) for raw_file in raw]
    if file is not None:
        assert file in {proto.name for proto in files}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("symbol", ["", "nothing", f"{PASSAGES}.Nothing", "strata.api.Nothing.X"])
async def test_unknown_symbols_are_not_found(address: str, version: str, symbol: str) -> None:
    answer = await ask(address, version, file_containing_symbol=symbol)
    assert answer.error_response.error_code == NOT_FOUND


@pytest.mark.skipif(GRPCURL is None, reason="needs grpcurl: `make tools` builds it with Go")
@pytest.mark.parametrize("symbol", [PASSAGES, f"{PASSAGES}.SearchPassages"])
async def test_grpcurl_can_describe_services_and_methods(address: str, symbol: str) -> None:
    assert GRPCURL is not None
    program = await asyncio.create_subprocess_exec(
        GRPCURL, "-plaintext", address, "describe", symbol,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await program.communicate()
    assert program.returncode == 0, err.decode()
    assert "SearchPassages" in out.decode()
