"""The signing key of core memory's worker gives access only to the index of files."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from integration.core_memory.ingest.conftest import Services
from rpc_errors import error_of_call
from strata.api.archival.v1 import (
    agent_archive_service_pb2,
    archive_service_pb2,
    file_index_service_pb2,
    passage_index_service_pb2,
    passage_service_pb2,
)
from strata.shared.auth import TokenSigner
from strata.shared.context import RequestContext, use
from strata.shared.ids import new_id

SERVICES: list[ServiceDescriptor] = [
    service
    for file in (
        agent_archive_service_pb2,
        archive_service_pb2,
        file_index_service_pb2,
        passage_index_service_pb2,
        passage_service_pb2,
    )
    for service in file.DESCRIPTOR.services_by_name.values()
]
NEEDED = {"IndexFile", "GetFileProgress", "DropFiles"}


async def status(channel: Any, method: MethodDescriptor, token: str) -> grpc.StatusCode:
    """Calls a method with an empty request and returns how it ends."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    metadata = (("authorization", f"Bearer {token}"),)
    error = await error_of_call(channel, path, metadata)
    return grpc.StatusCode.OK if error is None else error.code()


async def test_archival_accepts_the_key_of_the_worker_only_for_indexing_files(
    services: Services,
) -> None:
    await services.start_archival()
    channel = services.network.raw_channel("archival")
    worker = TokenSigner(services.worker_keys[0]).mint(
        "", new_id("project"), "core-memory-worker", ["files", "read", "write", "admin"]
    )
    gateway = services.keys.signer.mint("org", new_id("project"), "key-1", ["read", "write"])
    accepted = set()
    with use(RequestContext()):
        for service in SERVICES:
            for method in service.methods:
                if await status(channel, method, worker) is not grpc.StatusCode.UNAUTHENTICATED:
                    accepted.add(f"{service.name}.{method.name}")
                assert await status(channel, method, gateway) not in {
                    grpc.StatusCode.UNAUTHENTICATED,
                    grpc.StatusCode.UNIMPLEMENTED,
                }
    assert accepted == {f"FileIndexService.{name}" for name in NEEDED}
