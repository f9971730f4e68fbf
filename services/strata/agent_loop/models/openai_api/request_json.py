"""The JSON of requests, whose tools are encoded once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strata.shared.cached_property import CachedProperty


class KeptObject(dict[str, Any]):
    """A JSON object that is a part of many requests; it is not changed."""

    @CachedProperty
    def encoded(self) -> str:
        """Its JSON."""
        return _encode(self)


def encoded_request(body: Mapping[str, Any]) -> bytes:
    """Returns a request as JSON, in UTF-8, as the SDK encodes it.

    Args:
        body: The request; its tools, if it has any, are instances of `KeptObject`.

    Raises:
        ValueError: It has a number that JSON cannot express.
    """
    tools: list[KeptObject] = body.get("tools", [])
    others = _encode({name: value for name, value in body.items() if name != "tools"})
    if not tools:
        return others.encode()
    # Nearly always the tools are the largest part.
    return f'{others[:-1]},"tools":[{",".join([tool.encoded for tool in tools])}]}}'.encode()


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
