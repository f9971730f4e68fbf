"""Forms that browsers send to the console, and broken ones."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from strata.gateway.console.forms import FormFields, SentFile, read_form
from strata.protocol.errors import InvalidArgumentError

IN_PARTS = "multipart/form-data; boundary=line"
MAX_BYTES = 10_000


def part(disposition: str, content: bytes) -> bytes:
    """A part of a form."""
    return f"--line\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + content + b"\r\n"


TEXT = part('form-data; name="text"', "Grüße\r\n".encode())
PICTURE = part('form-data; name="image"; filename="ä.png"', b"\x89PNG\r\n--li\r\n\xff")
END = b"--line--\r\n"


async def sent(body: bytes, kind: str = IN_PARTS, **options: Any) -> FormFields:
    """Returns the form in a body."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    headers = [(b"content-type", kind.encode("latin-1"))]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    return await read_form(Request(scope, receive), MAX_BYTES, **options)


async def test_parts_of_a_form_are_fields_and_files() -> None:
    nothing = part('form-data; name="image"; filename=""', b"")
    form = await sent(TEXT + PICTURE + nothing + TEXT + END)
    assert form.texts("text") == ["Grüße\r\n"] * 2
    assert list(form.files) == [SentFile("ä.png", b"\x89PNG\r\n--li\r\n\xff")]


async def test_a_body_of_another_type_is_not_read() -> None:
    assert await sent(b"\xff", "application/octet-stream") == FormFields()
    assert await sent(TEXT + END, with_files=False) == FormFields()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (TEXT + END, "multipart/form-data"),
        (TEXT + END, "multipart/form-data; boundary="),
        (TEXT + END, f"multipart/form-data; boundary={'x' * 300}"),
        (TEXT + END, "multipart/form-data; boundary=other"),
        (part("form-data", b"x") + END, IN_PARTS),
        (part('form-data; name="a"', b"\xff") + END, IN_PARTS),
        (b"--line\r\nno header\r\n\r\nx\r\n" + END, IN_PARTS),
        (part('form-data; name="a"', b"") * 1001 + END, IN_PARTS),
        (part('form-data; name="a"', bytes(MAX_BYTES)) + END, IN_PARTS),
        (b"a=%ff&b=" + b"\xff", "application/x-www-form-urlencoded"),
        (b"a=" + b"x" * MAX_BYTES, "application/x-www-form-urlencoded"),
    ],
)
async def test_broken_form_is_refused(body: bytes, kind: str) -> None:
    with pytest.raises(InvalidArgumentError):
        await sent(body, kind)
