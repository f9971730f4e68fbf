"""Fetches the bytes of images before they are stored, and loads them before they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from strata.agent_loop.context.requests import image_note
from strata.agent_loop.domain.conversation.messages import Message, MessagePart
from strata.agent_loop.domain.model.chat import ImagePart, ModelRequest, PromptPart, ShownImage
from strata.agent_loop.domain.ports import ImageFetcher, Recall
from strata.agent_loop.domain.retries import until_available
from strata.protocol.errors import NotFoundError, StrataError
from strata.protocol.images import MAX_IMAGES_BYTES, ImageError, image_id, inspect_image
from strata.shared.provenance import Provenance

_FETCHED_AT_ONCE = 5
GONE = "it is no longer stored"
TOO_LARGE_TOGETHER = f"the images of one request may have {MAX_IMAGES_BYTES:,} bytes in all"


def identified(image: ImagePart) -> ImagePart:
    """Returns an image with its id, type and size, read from its bytes.

    Raises:
        ImageError: The bytes are not an image of an accepted type and size.
    """
    header = inspect_image(image.data)
    return replace(
        image,
        media_type=header.media_type,
        image_id=image_id(image.data),
        width=header.width,
        height=header.height,
        size_bytes=len(image.data),
    )


async def fetch_images(messages: Sequence[Message], fetcher: ImageFetcher | None) -> list[Message]:
    """Returns inputs with the bytes of their images; images that are URLs are fetched.

    An image that cannot be fetched is replaced by a text with the reason: the run continues, and
    the model can inform the user. A message with a fetched image is labelled WEB.

    Args:
        messages: The inputs.
        fetcher: Fetches URLs; None if this server must not.
    """
    parts = [part for message in messages for part in message.parts]
    urls = dict.fromkeys(p.url for p in parts if isinstance(p, ImagePart) and not p.data)
    filler = _Filler(await _fetch_all(list(urls), fetcher))
    return [filler.message(message) for message in messages]


def image_ids(request: ModelRequest) -> frozenset[str]:
    """Returns the ids of the images that a request shows."""
    return frozenset(part.image.image_id for m in request.messages for part in m.images)


def without_images(request: ModelRequest, ids: Collection[str], reason: str) -> ModelRequest:
    """Returns a request in which a text with the reason replaces each of the given images."""
    if not ids:
        return request

    def shown_part(part: PromptPart) -> PromptPart:
        if isinstance(part, ShownImage) and part.image.image_id in ids:
            return image_note(part.image, reason)
        return part

    return _with_parts(request, shown_part)


async def load_images(request: ModelRequest, recall: Recall) -> ModelRequest:
    """Returns a request whose images have their bytes.

    An image that is no longer stored is replaced by a note. Without images the
    request is returned unchanged. While recall is unavailable, loading is retried.

    Raises:
        StrataError: Recall refused.
    """
    ids = list(dict.fromkeys(p.image.image_id for m in request.messages for p in m.images))
    if not ids:
        return request
    contents = await asyncio.gather(*(_load(id_, recall) for id_ in ids))
    loaded = dict(zip(ids, contents, strict=True))

    def with_data(part: PromptPart) -> PromptPart:
        if not isinstance(part, ShownImage):
            return part
        data = loaded[part.image.image_id]
        if not data:
            return image_note(part.image, GONE)
        return replace(part, image=replace(part.image, data=data))

    return _with_parts(request, with_data)


def _with_parts(
    request: ModelRequest, converted: Callable[[PromptPart], PromptPart]
) -> ModelRequest:
    """Returns a request with other parts in the messages that show images."""
    messages = [
        replace(message, content=tuple(map(converted, message.content)))
        if message.images
        else message
        for message in request.messages
    ]
    return replace(request, messages=messages)


class _Filler:
    """Puts the bytes into the images of inputs, up to the limit for all images.

    Args:
        answers: The fetched image by URL, or the reason why there is none.
    """

    def __init__(self, answers: Mapping[str, ImagePart | str]) -> None:
        self._answers = answers
        self._remaining_bytes = MAX_IMAGES_BYTES

    def message(self, message: Message) -> Message:
        parts = tuple(map(self._part, message.parts))
        web = any(isinstance(part, ImagePart) and part.url for part in parts)
        labels = dict.fromkeys((*message.provenance, *([Provenance.WEB] if web else [])))
        return replace(message, parts=parts, provenance=tuple(labels))

    def _part(self, part: MessagePart) -> MessagePart:
        if not isinstance(part, ImagePart):
            return part
        # The source of sent bytes is unknown, whatever the client wrote into the output-only field.
        image = identified(replace(part, url="")) if part.data else self._answers[part.url]
        if isinstance(image, str):
            return image_note(part, image)
        if image.size_bytes > self._remaining_bytes:
            return image_note(part, TOO_LARGE_TOGETHER)
        self._remaining_bytes -= image.size_bytes
        return replace(image, alt_text=part.alt_text, detail=part.detail)


async def _fetch_all(
    urls: Sequence[str], fetcher: ImageFetcher | None
) -> dict[str, ImagePart | str]:
    """Returns the images, or the reasons why there are none, by URL.

    Only a few are fetched at once, and no more bytes are kept than a request may have: twenty
    large images would take far more memory.
    """
    answers: dict[str, ImagePart | str] = {}
    remaining_bytes = MAX_IMAGES_BYTES
    for start in range(0, len(urls), _FETCHED_AT_ONCE):
        batch = urls[start : start + _FETCHED_AT_ONCE]
        fetched = await asyncio.gather(*(_fetch(url, fetcher) for url in batch))
        for url, answer in zip(batch, fetched, strict=True):
            if not isinstance(answer, ImagePart):
                answers[url] = answer
            elif answer.size_bytes > remaining_bytes:
                answers[url] = TOO_LARGE_TOGETHER
            else:
                remaining_bytes -= answer.size_bytes
                answers[url] = answer
    return answers


async def _fetch(url: str, fetcher: ImageFetcher | None) -> ImagePart | str:
    if fetcher is None:
        return f"this server does not fetch images, such as {url}"
    try:
        return identified(ImagePart("", url=url, data=await fetcher.fetch(url)))
    except StrataError as error:
        return f"it could not be fetched from {url}: {error.message.rstrip('.')}"
    except ImageError as error:
        return f"the file at {url} {error}"


async def _load(image_id: str, recall: Recall) -> bytes:
    if not image_id:
        # An image whose bytes were never stored.
        return b""
    try:
        return await until_available(lambda: recall.image(image_id))
    except NotFoundError:
        return b""
