"""Child process that converts one PDF to text; see `web_child`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pypdfium2  # type: ignore[import-untyped]

from strata.tool_execution.builtin import web_child
from strata.tool_execution.builtin.web_texts import MAX_TEXT_CHARS

_MAX_PAGES = 2_000


def read_pdf(body: bytes, _charset: str) -> tuple[str, str]:
    """Returns the title and the text of a PDF.

    Raises:
        UnreadableError: The PDF is protected or damaged, or consists of pictures.
    """
    try:
        document = pypdfium2.PdfDocument(body)
    except pypdfium2.PdfiumError as error:
        if "assword" in str(error):
            raise web_child.UnreadableError("The PDF is protected by a password.") from error
        raise web_child.UnreadableError(
            "The PDF is damaged or was not received in full."
        ) from error
    text = "\n".join(_pages_of(document))
    if not text.strip():
        raise web_child.UnreadableError(
            "The PDF contains no text. Pages that are images, such as scans, cannot be read."
        )
    return str(document.get_metadata_dict().get("Title", "")), text


def _pages_of(document: pypdfium2.PdfDocument) -> Iterator[str]:
    length = 0
    for number in range(min(len(document), _MAX_PAGES)):
        page = document[number]
        text = page.get_textpage()
        piece = text.get_text_bounded()
        text.close()
        page.close()
        yield piece
        length += len(piece)
        if length > MAX_TEXT_CHARS:
            return


if __name__ == "__main__":
    sys.exit(web_child.serve(read_pdf, sys.argv[1:]))
