"""Opens a text in the person's editor."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict

from strata.cli.chat.prompt import interruptible
from strata.cli.failures import UsageError

_DEFAULT_EDITORS = ("sensible-editor", "nano", "vim", "vi")


class EditorSettings(BaseSettings):
    """The editor command: ``VISUAL``, then ``EDITOR``."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True)

    visual: str = ""
    editor: str = ""


def edit(text: str, settings: EditorSettings) -> str:
    """Opens the text in the editor and returns the edited text.

    Raises:
        UsageError: There is no editor, or it failed.
    """
    command = shlex.split(settings.visual or settings.editor) or _default_editor()
    with tempfile.TemporaryDirectory(prefix="strata-edit-") as folder:
        file = Path(folder) / "memory.txt"
        # As bytes, to keep the line ends.
        file.write_bytes(text.encode())
        try:
            with interruptible():
                done = subprocess.run([*command, str(file)], check=False)  # noqa: S603 - theirs
        except OSError as error:
            raise UsageError(f"{command[0]} cannot be started: {error.strerror}.") from error
        if done.returncode != 0:
            raise UsageError(f"{command[0]} failed; nothing was changed.")
        try:
            edited = file.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise UsageError("The text is no longer UTF-8; nothing was changed.") from error
    # Editors add a newline at the end of a file.
    return edited if text.endswith("\n") else edited.removesuffix("\n")


def _default_editor() -> list[str]:
    for name in _DEFAULT_EDITORS:
        if shutil.which(name):
            return [name]
    raise UsageError("There is no editor here. Set EDITOR, or give --value or --file.")
