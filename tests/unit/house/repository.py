"""The repository as files, each read once and parsed only where a test needs its tree."""

from __future__ import annotations

import ast
import itertools
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
ROOTS = (
    *("shared", "services", "gateway", "standalone"),
    *("clients/cli", "clients/python"),
)
_GENERATED = REPOSITORY / "clients" / "python" / "strata" / "api"


@cache
def modules() -> list[Path]:
    """Returns the modules of the product that are not generated."""
    return [
        path
        for root in ROOTS
        for path in sorted((REPOSITORY / root / "strata").rglob("*.py"))
        if _GENERATED not in path.parents
    ]


@cache
def sources() -> list[Path]:
    """Returns the modules of the product without the migrations."""
    return [path for path in modules() if path.parent.name != "versions"]


@cache
def tracked() -> list[Path]:
    """Returns the files of the repository: tracked and untracked ones that are not ignored."""
    git = shutil.which("git")
    if git is not None and (REPOSITORY / ".git").exists():
        listing = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        done = subprocess.run(
            [git, "-c", f"safe.directory={REPOSITORY}", *listing],
            cwd=REPOSITORY,
            capture_output=True,
            check=True,
        )
        names = done.stdout.decode().split("\0")
        return [path for name in names if name and (path := REPOSITORY / name).is_file()]
    ignored = (REPOSITORY / ".gitignore").read_text("utf-8").split()
    return [
        path
        for path in REPOSITORY.rglob("*")
        if path.is_file()
        and not any(
            part.match(pattern.rstrip("/"))
            for pattern in [*ignored, ".git"]
            for part in map(Path, path.relative_to(REPOSITORY).parts)
        )
    ]


@cache
def text_of(path: Path) -> str:
    """Returns the text of a file.

    Raises:
        UnicodeDecodeError: The file is not UTF-8.
    """
    return path.read_text("utf-8")


@cache
def name_of(path: Path) -> str:
    """Returns the path of a file from the top of the repository."""
    return path.relative_to(REPOSITORY).as_posix()


@cache
def texts() -> Mapping[str, str]:
    """Returns the text files of the repository by name."""
    contents = {}
    for path in tracked():
        try:
            contents[name_of(path)] = text_of(path)
        except UnicodeDecodeError:
            continue
    return contents


def trees(paths: Iterable[Path], mention: re.Pattern[str]) -> Iterator[tuple[Path, ast.Module]]:
    """Parses the modules in which a pattern matches.

    To parse and walk every module of the repository takes many seconds. A test names a text that
    every module with a possible match contains.

    Args:
        paths: The modules.
        mention: Matches the text of every module that the test has to see.
    """
    for path in paths:
        if mention.search(text_of(path)):
            yield path, ast.parse(text_of(path))


@cache
def sections_of(path: Path) -> Mapping[str, str]:
    """Returns the sections of a Markdown file; see `sections`."""
    return sections(text_of(path))


def sections(document: str) -> dict[str, str]:
    """Returns the sections of a Markdown document by the anchors that GitHub gives their headings.

    A section ends at the next heading, of whatever level.
    """
    by_anchor: dict[str, list[str]] = {}
    lines: list[str] = []
    fenced = False
    for line in document.splitlines():
        fenced ^= line.lstrip().startswith("```")
        heading = None if fenced else re.fullmatch(r"#{1,6} +(.+?)\s*", line)
        if heading is None:
            lines.append(line)
            continue
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
        slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        repeated = (f"{slug}-{number}" for number in itertools.count(1))
        anchor = (
            slug
            if slug not in by_anchor
            else next(name for name in repeated if name not in by_anchor)
        )
        lines = by_anchor[anchor] = []
    return {anchor: "\n".join(lines) for anchor, lines in by_anchor.items()}
