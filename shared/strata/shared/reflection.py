"""gRPC reflection, version 1 and its predecessor v1alpha, which differ by their names only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

_V1ALPHA = "grpc.reflection.v1alpha"
_V1 = "grpc.reflection.v1"
_METHOD = "ServerReflectionInfo"

SERVICES = (f"{_V1}.ServerReflection", f"{_V1ALPHA}.ServerReflection")
"""Full names of the services that `add_reflection` adds."""


def add_reflection(names: Iterable[str], server: Any) -> None:
    """Serves reflection of both versions.

    Args:
        names: Full names of the services that are served beside it.
        server: A server, or another object that takes handlers.
    """
    _describe_v1()
    servicer = _Servicer((*names, *SERVICES))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(  # type: ignore[no-untyped-call]
        servicer, server
    )
    # The package has v1alpha only (1.85); the bytes of both are the same.
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICES[0], {_METHOD: handler}),)
    )


class _Servicer(reflection.aio.ReflectionServicer):
    """Also finds methods and fields; the base class finds top-level symbols only."""

    def _file_containing_symbol(self, request: Any, fully_qualified_name: str) -> Any:
        parent, _, name = fully_qualified_name.rpartition(".")
        if parent and _has_member(parent, name):
            fully_qualified_name = parent
        # The type stubs of the package lack this method.
        return super()._file_containing_symbol(request, fully_qualified_name)  # type: ignore[misc]


def _has_member(parent: str, name: str) -> bool:
    pool = descriptor_pool.Default()
    try:
        return name in pool.FindServiceByName(parent).methods_by_name
    except KeyError:
        pass
    try:
        return name in pool.FindMessageTypeByName(parent).fields_by_name
    except KeyError:
        return False


def _describe_v1() -> None:
    """Registers the descriptors of v1, so that reflection can describe itself."""
    pool = descriptor_pool.Default()
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = "grpc/reflection/v1/reflection.proto", _V1
    file.ClearField("options")
    for message in file.message_type:
        for field in message.field:
            # Setting it, even to "", turns the field into one of a message type.
            if field.type_name:
                field.type_name = field.type_name.replace(_V1ALPHA, _V1)
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(_V1ALPHA, _V1)
            method.output_type = method.output_type.replace(_V1ALPHA, _V1)
    try:
        pool.FindFileByName(file.name)
    except KeyError:
        pool.Add(file)
