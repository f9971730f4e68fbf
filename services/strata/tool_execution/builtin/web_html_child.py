"""Child process that converts one HTML page to text; see `web_child`."""

from __future__ import annotations

import sys

import lxml.etree  # type: ignore[import-untyped]
import lxml.html  # type: ignore[import-untyped]
import trafilatura

from strata.tool_execution.builtin import web_child

# With more elements, extracting the main text may take minutes.
_MAX_ELEMENTS = 50_000
# A shorter main text is probably a cookie notice.
_MAIN_CHARS = 200
_EMPTY = "The page contains no text. It may need a browser that runs its scripts."


def read_html(body: bytes, charset: str) -> tuple[str, str]:
    """Returns the title and the main text, with links and tables as Markdown.

    Raises:
        UnreadableError: The page contains no text.
    """
    tree = _tree_of(body, charset)
    title = " ".join((tree.findtext(".//title") or "").split())
    full_text = _whole_text(tree)
    text = full_text
    if tree.xpath("count(//*)") <= _MAX_ELEMENTS:
        main_text = trafilatura.extract(
            tree,
            output_format="markdown",
            include_links=True,
            include_comments=False,
            favor_recall=True,
        )
        if main_text and len(main_text) >= min(_MAIN_CHARS, len(full_text)):
            text = main_text
    if not text.strip():
        raise web_child.UnreadableError(_EMPTY)
    return title, text


def _tree_of(body: bytes, charset: str) -> lxml.html.HtmlElement:
    # Without a charset from the server, the library detects the encoding that the page declares.
    page = body.decode(charset, "replace") if charset else body
    tree = trafilatura.load_html(page)
    if tree is not None:
        return tree
    # trafilatura returns None for fragments.
    text = page if isinstance(page, str) else page.decode("utf-8", "replace")
    try:
        return lxml.html.document_fromstring(text)
    except lxml.etree.LxmlError as error:
        raise web_child.UnreadableError(_EMPTY) from error


def _whole_text(tree: lxml.html.HtmlElement) -> str:
    """Returns all text of a page, for pages without a main text such as lists, forms and apps."""
    pieces = tree.xpath(
        "//text()[not(ancestor::head or ancestor::script or ancestor::style"
        " or ancestor::noscript or ancestor::template)]"
    )
    return "\n".join(line for line in (" ".join(piece.split()) for piece in pieces) if line)


if __name__ == "__main__":
    sys.exit(web_child.serve(read_html, sys.argv[1:]))
