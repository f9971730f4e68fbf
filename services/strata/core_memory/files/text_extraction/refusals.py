"""Why a file cannot be converted, in words for a person."""

from __future__ import annotations

from strata.core_memory.files.text_extraction.formats import FileFormat
from strata.core_memory.files.text_extraction.pages import UnreadableFileError

_NAMES = {FileFormat.PDF: "PDF", FileFormat.DOCX: "Word document", FileFormat.HTML: "web page"}


def damaged(file_format: FileFormat) -> UnreadableFileError:
    """Returns the error for a file that makes its converter fail."""
    name = _NAMES.get(file_format, "file")
    return UnreadableFileError(f"The {name} is damaged, or uses features that cannot be read.")


def too_greedy(file_format: FileFormat) -> UnreadableFileError:
    """Returns the error for a file that needs more memory than is allowed."""
    name = _NAMES.get(file_format, "file")
    return UnreadableFileError(f"The {name} needs too much memory to be read.")
