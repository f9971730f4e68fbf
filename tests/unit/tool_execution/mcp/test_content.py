"""Content of MCP results as the model sees it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from image_samples import png
from strata.protocol.images import MAX_IMAGES
from strata.tool_execution.domain.tools import Output
from strata.tool_execution.mcp.results import read_result


def read(*content: Any) -> Output:
    return read_result("files__read", {"content": list(content)})


def image(data: bytes, kind: str = "image/png") -> dict[str, str]:
    return {"type": "image", "mimeType": kind, "data": base64.b64encode(data).decode()}


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (
            {"type": "audio", "mimeType": "audio/wav", "data": "A" * 400},
            "[audio, audio/wav, about 300 bytes, not shown]",
        ),
        (
            {"type": "resource_link", "uri": "file:///a.txt", "name": "a"},
            "[resource file:///a.txt, not read]",
        ),
        (
            {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "Hello."}},
            "Hello.",
        ),
        (
            {"type": "resource", "resource": {"uri": "file:///a.bin", "blob": "AAAA"}},
            "[resource file:///a.bin, not text, not shown]",
        ),
        ({"type": "video"}, "[content of the type video, not shown]"),
    ],
)
def test_content_that_cannot_be_shown_is_described(part: dict[str, Any], text: str) -> None:
    output = read(part)
    assert (output.value, output.images) == (text, ())


def test_an_image_of_a_resource_is_shown() -> None:
    held = {"uri": "file:///a.png", "mimeType": "image/png", "blob": image(png(3, 2))["data"]}
    output = read({"type": "text", "text": "Here:"}, {"type": "resource", "resource": held})
    assert output.value == "Here:\n[resource file:///a.png] [image 1: image/png, 3 x 2]"
    assert [image.data for image in output.images] == [png(3, 2)]


def test_the_bytes_decide_on_the_type_of_an_image() -> None:
    output = read(image(png(), kind="image/jpeg"), image(b"no image"))
    assert [image.header.media_type for image in output.images] == ["image/png"]
    assert "not shown" in str(output.value)


def test_images_over_the_limit_are_mentioned_in_the_text() -> None:
    output = read(*(image(png(shade=number)) for number in range(MAX_IMAGES + 1)))
    assert len(output.images) == MAX_IMAGES
    assert str(output.value).splitlines()[-1].endswith("not shown: the images are too many]")


@pytest.mark.parametrize(
    ("structured", "reason"),
    [
        ({"a": "x\0"}, "contains the character NUL"),
        ({"a": float("nan")}, "holds a number that JSON does not have"),
    ],
)
def test_structured_content_that_cannot_be_stored_is_mentioned(
    structured: Any, reason: str
) -> None:
    output = read_result("files__read", {"content": [], "structuredContent": structured})
    assert output.value == f"[structured content, not shown: it {reason}]"
    text = [{"type": "text", "text": "One."}]
    output = read_result("files__read", {"content": text, "structuredContent": structured})
    assert output.value == "One."
