"""Stores lists of passages with ``UploadPassages``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strata.api.archival.v1 import passage_service_pb2 as pb


def new_passages(texts: Sequence[str]) -> list[pb.NewPassage]:
    return [pb.NewPassage(text=text) for text in texts]


async def upload_passages(
    passages: Any,
    *batches: Sequence[pb.NewPassage],
    call: Mapping[str, Any] | None = None,
    **first: Any,
) -> list[pb.UploadPassagesResponse]:
    """Uploads passages, one message per batch; returns the response to each and the last one.

    Args:
        passages: Stub of the passage service.
        batches: The passages of each message.
        call: Metadata and deadline of the call.
        first: Fields of the first message: ``archive_id`` or ``agent_id``, ``request_id``,
            ``skip_count``.
    """
    requests = [
        pb.UploadPassagesRequest(passages=batch, **({} if number else first))
        for number, batch in enumerate(batches)
    ]
    responses = passages.UploadPassages(iter(requests), **(call or {}))
    return [response async for response in responses]
