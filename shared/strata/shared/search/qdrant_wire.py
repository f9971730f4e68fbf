"""Qdrant's generated messages and service stubs, without the rest of Qdrant's client.

The messages come with `qdrant-client`. A normal import of that package also loads its HTTP
client, its local mode and its models, which takes 30 MB or more and half a second. This module
therefore imports only the `grpc` subpackage, with an empty stand-in for the parent package, unless
the client is already loaded.

The vector index and the embedded engine share it. It is outside of `vectors`, so that the process
of the engine does not load the index.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType


def _stand_in() -> ModuleType | None:
    if "qdrant_client" in sys.modules:
        return None
    spec = importlib.util.find_spec("qdrant_client")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("qdrant-client is not installed", name="qdrant_client")
    parent = ModuleType("qdrant_client")
    parent.__path__ = list(spec.submodule_search_locations)
    sys.modules["qdrant_client"] = parent
    return parent


_parent = _stand_in()
try:
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
finally:
    # A later import of the client must load the real package.
    if _parent is not None and sys.modules.get("qdrant_client") is _parent:
        del sys.modules["qdrant_client"]

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
