"""Qdrant's generated messages and service stubs, without the rest of Qdrant's client.

The messages come with `qdrant-client`. A normal import of that package also loads its HTTP
client, its local mode and its models, which takes 30 MB or more and half a second. This module
therefore imports only the `grpc` subpackage.

The vector index and the embedded engine share it. It is outside of `vectors`, so that the process
of the engine does not load the index.
"""

from __future__ import annotations

from strata.shared.package_stand_in import stand_in

with stand_in("qdrant_client"):
    from qdrant_client.grpc import (
        collections_pb2 as collections,
    )
    from qdrant_client.grpc import (
        collections_service_pb2_grpc as collections_service,
    )
    from qdrant_client.grpc import (
        json_with_int_pb2 as json_values,
    )
    from qdrant_client.grpc import (
        points_pb2 as points,
    )
    from qdrant_client.grpc import (
        points_service_pb2_grpc as points_service,
    )
    from qdrant_client.grpc import (
        qdrant_common_pb2 as common,
    )
    from qdrant_client.grpc import (
        qdrant_pb2 as root,
    )
    from qdrant_client.grpc import (
        qdrant_pb2_grpc as root_service,
    )

__all__ = [
    "collections",
    "collections_service",
    "common",
    "json_values",
    "points",
    "points_service",
    "root",
    "root_service",
]
