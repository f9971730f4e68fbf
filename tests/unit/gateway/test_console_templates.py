"""Templates of the console: all values are escaped, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re

import pytest
from jinja2 import UndefinedError

from strata.gateway.console.application import STATIC
from strata.gateway.console.pages import TEMPLATES, Verbatim, readable, render

SOURCES = {
    path.relative_to(TEMPLATES).as_posix(): path.read_text("utf-8")
    for path in sorted(TEMPLATES.rglob("*.html"))
}


@pytest.mark.parametrize("name", SOURCES)
def test_no_template_turns_escaping_off(name: str) -> None:
    assert not re.search(r"\|\s*safe\b|autoescape|Markup", SOURCES[name])


@pytest.mark.parametrize("name", SOURCES)
def test_template_has_no_inline_script_or_style(name: str) -> None:
    inline = r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=|hx-on|javascript:"
    assert not re.search(inline, SOURCES[name])


@pytest.mark.parametrize("name", SOURCES)
def test_a_template_loads_nothing_from_other_hosts(name: str) -> None:
    assert not re.search(r"https?://|[\"']//", SOURCES[name])


@pytest.mark.parametrize(
    "name", [name for name in SOURCES if re.search(r"method=\"post\"", SOURCES[name])]
)
def test_every_form_that_changes_something_contains_the_token(name: str) -> None:
    for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", SOURCES[name], re.DOTALL):
        signing_in = "/sign-in" in form
        assert signing_in or "macros.csrf(csrf_token)" in form or 'name="csrf"' in form


def test_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("sign_in.html")


def test_values_are_escaped_and_control_characters_replaced() -> None:
    page = render("sign_in.html", problem="<b>\u202e\x07</b>\r\n", next_path="", visit=None)
    assert "&lt;b&gt;\ufffd\ufffd&lt;/b&gt;\n" in page
    kept = render("sign_in.html", problem=Verbatim("<b>\u202e"), next_path="", visit=None)
    assert "&lt;b&gt;\u202e" in kept
    assert readable("tab\tand\nline") == "tab\tand\nline"


def test_vendored_files_have_their_licences() -> None:
    for folder in (STATIC / "vendor").iterdir():
        names = {path.name for path in folder.iterdir()}
        assert {"LICENSE", "README.md"} <= names
