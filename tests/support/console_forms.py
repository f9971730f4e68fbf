"""Forms in pages of the console, with the values that a browser would send."""

from __future__ import annotations

from html.parser import HTMLParser

Fields = dict[str, list[str]]


def form_in(page: str, action: str) -> Fields:
    """Returns the fields of the form of a page that is sent to a path below the console."""
    reader = _Reader(f"/console{action}")
    reader.feed(page)
    assert reader.seen, f"no form is sent to {action}"
    return reader.fields


class _Reader(HTMLParser):
    def __init__(self, action: str) -> None:
        super().__init__()
        self._action = action
        self._open = False
        self._area = self._choice = ""
        self.seen = False
        self.fields: Fields = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        name = values.get("name", "")
        if tag == "form":
            self._open = values.get("action") == self._action
            self.seen = self.seen or self._open
        if not self._open:
            return
        if tag == "input" and name and (values.get("type") != "checkbox" or "checked" in values):
            self._add(name, values.get("value", "on" if values.get("type") == "checkbox" else ""))
        elif tag == "textarea":
            self._area = name
            self._add(name, "")
        elif tag == "select":
            self._choice = name
        elif tag == "option" and self._choice and "selected" in values:
            self._add(self._choice, values.get("value", ""))

    def handle_data(self, data: str) -> None:
        if self._area:
            self.fields[self._area][-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._area:
            # HTML ignores a line break directly after the start tag.
            self.fields[self._area][-1] = self.fields[self._area][-1].removeprefix("\n")
            self._area = ""
        elif tag == "select":
            self._choice = ""
        elif tag == "form":
            self._open = False

    def _add(self, name: str, value: str) -> None:
        self.fields.setdefault(name, []).append(value)
