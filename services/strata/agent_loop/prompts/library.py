"""System prompts by key: the built-in ones, and the files of a folder.

The built-in prompts are ``builtin/<key>.txt``. The folder of an operator holds further prompts as
``<key>.txt``; it is read at every call, so that a new file needs no restart.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path

from strata.protocol.errors import (
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    NotFoundError,
    Reason,
)

MAX_PROMPT_CHARS = 200_000
"""Maximum number of characters of a system prompt."""
MAX_PROMPT_BYTES = 4 * MAX_PROMPT_CHARS
"""Maximum bytes of a file: UTF-8 takes up to four bytes per character."""
MAX_LISTED_FILES = 500

BUILTIN_DESCRIPTIONS: Mapping[str, str] = {
    "letta_v1": "Agents of type letta_v1_agent: plain replies and tools",
    "memgpt_chat": "Agents of type memgpt_agent: as memgpt_v2_chat, with other memory tools",
    "memgpt_generate_tool": "Agents that write tools",
    "memgpt_v2_chat": "Agents of type memgpt_v2_agent: replies through send_message",
    "react": "Agents of type react_agent: tools only",
    "sleeptime_doc_ingest": "Agents that read a document into memory blocks",
    "sleeptime_v2": "Agents of type sleeptime_agent: edit memory in the background",
    "summary_system_prompt": "Summaries of messages that leave the window",
    "voice_chat": "Agents of type voice_convo_agent: short spoken replies",
    "voice_sleeptime": "Agents of type voice_sleeptime_agent: memory of a voice agent",
    "workflow": "Agents of type workflow_agent: tools in sequence",
}
"""The purpose of each built-in prompt, by key, sorted."""

_SUFFIX = ".txt"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class LibraryPrompt:
    """A prompt of the library.

    Attributes:
        key: Its key.
        builtin: Whether it is built in.
        text: Its text; empty if the file cannot be used.
        problem: Why the file cannot be used; empty if it can.
    """

    key: str
    builtin: bool
    text: str
    problem: str = ""

    @property
    def description(self) -> str:
        """The purpose of a built-in prompt; empty for a file."""
        return BUILTIN_DESCRIPTIONS[self.key] if self.builtin else ""


@dataclass(frozen=True, slots=True)
class PromptListing:
    """All prompts.

    Attributes:
        prompts: The built-in prompts, then the folder's, each by key.
        more: Number of files in the folder that are not listed, since there are too many.
    """

    prompts: tuple[LibraryPrompt, ...]
    more: int = 0


@cache
def system_prompt(key: str) -> str:
    """Returns the text of a built-in prompt.

    Raises:
        KeyError: No built-in prompt has this key.
    """
    if key not in BUILTIN_DESCRIPTIONS:
        raise KeyError(key)
    return _trimmed(_builtin_file(key))


class PromptLibrary:
    """The built-in prompts and the prompts of a folder. Its methods read files and block.

    Args:
        folder: Folder with ``<key>.txt`` files; None for none. It need not exist.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def get(self, key: str, *, field: str = "key") -> LibraryPrompt:
        """Returns the prompt of a key; a built-in prompt wins over a file.

        Args:
            key: The key.
            field: Name of the field of a request that holds it, for errors.

        Raises:
            InvalidArgumentError: It cannot be a key.
            NotFoundError: No prompt has it (``PROMPT_NOT_FOUND``).
            FailedPreconditionError: Its file cannot be used (``PROMPT_UNUSABLE``).
        """
        if not _KEY.fullmatch(key):
            wanted = (
                "must be the key of a prompt: 1 to 64 letters, digits, '_' and '-',"
                " the first a letter or digit"
            )
            raise InvalidArgumentError(
                f"{field} {wanted}.", violations=[FieldViolation(field, wanted)]
            )
        if key in BUILTIN_DESCRIPTIONS:
            return LibraryPrompt(key, True, system_prompt(key))
        prompt = self._read(key)
        if prompt is None:
            raise NotFoundError(
                f'There is no prompt "{key}". ListPrompts shows all prompts.',
                reason=Reason.PROMPT_NOT_FOUND,
                metadata={"key": key},
            )
        if prompt.problem:
            raise FailedPreconditionError(
                f"The prompt cannot be used: {prompt.problem}",
                reason=Reason.PROMPT_UNUSABLE,
                metadata={"key": key},
            )
        return prompt

    def list(self) -> PromptListing:
        """Returns all prompts, including files that cannot be used, with the reason."""
        builtin = [LibraryPrompt(key, True, system_prompt(key)) for key in BUILTIN_DESCRIPTIONS]
        names = sorted(self._names())
        custom = [self._listed(name) for name in islice(names, MAX_LISTED_FILES)]
        return PromptListing(
            (*builtin, *(prompt for prompt in custom if prompt is not None)),
            max(0, len(names) - MAX_LISTED_FILES),
        )

    def _names(self) -> Iterator[str]:
        if self._folder is None:
            return
        try:
            with os.scandir(self._folder) as entries:
                names = [entry.name for entry in entries]
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return
        for name in names:
            if name.endswith(_SUFFIX) and not name.startswith("."):
                yield name

    def _listed(self, name: str) -> LibraryPrompt | None:
        key = name.removesuffix(_SUFFIX)
        if not _KEY.fullmatch(key):
            readable_key = key.encode("utf-8", "replace").decode()
            return LibraryPrompt(
                readable_key, False, "", "The name of the file is not a key of a prompt."
            )
        if key in BUILTIN_DESCRIPTIONS:
            return LibraryPrompt(key, False, "", "A built-in prompt has this key: rename the file.")
        return self._read(key)

    def _read(self, key: str) -> LibraryPrompt | None:
        """Reads the file of a key; None if there is none."""
        if self._folder is None:
            return None
        path = self._folder / (key + _SUFFIX)
        try:
            # A mounted ConfigMap consists of links, but none of them leads out of the folder.
            inside = path.resolve(strict=True).is_relative_to(self._folder.resolve())
            data = _content(path) if inside else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, RuntimeError):
            return LibraryPrompt(key, False, "", f"{path.name} cannot be read.")
        if not inside:
            return LibraryPrompt(
                key, False, "", f"{path.name} is a link to a file outside the folder."
            )
        if data is None:
            return LibraryPrompt(key, False, "", f"{path.name} is not a regular file.")
        return _prompt_of(key, path.name, data)


def _content(path: Path) -> bytes | None:
    """Returns the bytes of a regular file, up to one more than allowed; None for other files."""
    # Without the flag, opening a named pipe without a writer would block.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return file.read(MAX_PROMPT_BYTES + 1)


def _prompt_of(key: str, name: str, data: bytes) -> LibraryPrompt:
    try:
        text = "" if len(data) > MAX_PROMPT_BYTES else _trimmed(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        problem = f"{name} is not UTF-8: byte {error.start} is wrong."
        return LibraryPrompt(key, False, "", problem)
    if len(data) > MAX_PROMPT_BYTES or len(text) > MAX_PROMPT_CHARS:
        problem = f"{name} is too large: at most {MAX_PROMPT_CHARS} characters."
    elif not text.strip():
        problem = f"{name} is empty."
    elif "\0" in text:
        problem = f"{name} contains NUL."
    else:
        return LibraryPrompt(key, False, text)
    return LibraryPrompt(key, False, "", problem)


def _trimmed(text: str) -> str:
    """Returns the text without byte order mark and line feeds at its end; no line ends in CR LF."""
    return text.removeprefix(_BOM).replace("\r\n", "\n").rstrip("\n")


def _builtin_file(key: str) -> str:
    return (files(__package__) / "builtin" / (key + _SUFFIX)).read_text(encoding="utf-8")
