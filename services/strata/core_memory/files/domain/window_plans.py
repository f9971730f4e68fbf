"""Plans the open windows of an agent, and writes the messages (docs/wire-format.md#file-tools)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from strata.core_memory.files.domain.directories import attribute
from strata.core_memory.files.domain.file_windows import (
    AttachedFile,
    FileWindow,
    OpenWindows,
    PromptUse,
    UnknownFileError,
    WindowPlan,
    WindowRequest,
)
from strata.core_memory.files.domain.files import ContentState, wrong_field
from strata.protocol.errors import (
    FailedPreconditionError,
    NotFoundError,
    OutOfRangeError,
    Reason,
    StrataError,
)
from strata.shared.search.folded_text import normalise

NAMES_SHOWN = 20
"""Maximum of attached files that a message names."""

# Bytes of the note about closed files in the prompt, without the names.
_NOTE_BYTES = 200
_TICK = timedelta(microseconds=1)


def check_requests(command: OpenWindows) -> None:
    """Validates the parts of a command that do not depend on the files.

    Raises:
        InvalidArgumentError: A field is wrong; the message is written for the model.
    """
    requests = command.requests
    if not requests:
        raise wrong_field("windows", "No file requests provided")
    if len(requests) > command.max_open:
        raise wrong_field(
            "windows",
            f"Cannot open {len(requests)} files: exceeds configured maximum limit of "
            f"{command.max_open} files",
        )
    seen: set[str] = set()
    for index, request in enumerate(requests):
        field, name = f"windows[{index}]", request.file_name
        if request.offset is not None and request.offset < 0:
            raise wrong_field(
                f"{field}.offset",
                f"Offset for file {name} must be >= 0 (0-indexed), got {request.offset}",
            )
        if request.length is not None and request.length < 1:
            raise wrong_field(
                f"{field}.length", f"Length for file {name} must be >= 1, got {request.length}"
            )
        if name in seen:
            raise wrong_field(
                f"{field}.file_name",
                f"File {name} is requested twice: a file has one window at a time",
            )
        seen.add(name)


def plan_opening(
    command: OpenWindows,
    files: Mapping[str, AttachedFile],
    windows: Sequence[FileWindow],
    now: datetime,
) -> WindowPlan:
    """Plans the opening of files; raises if one of the requests cannot be met.

    Args:
        command: The command, checked by `check_requests`.
        files: The requested files that are attached, by name.
        windows: The open windows.
        now: The present.

    Raises:
        UnknownFileError: No attached file has that name.
        FailedPreconditionError: A file cannot be read, or not yet (``EDIT_NOT_APPLICABLE``).
        OutOfRangeError: A window starts after the end of its file.
    """
    requested = [(request, _readable(request, files)) for request in command.requests]
    before = {window.file.id: window for window in windows}
    # New windows count as newest also if the clock did not advance or was set back.
    latest = max((window.last_access_time for window in windows), default=now)
    moment = max(now, latest + _TICK)
    opened = [
        _window(request, file, moment + index * _TICK)
        for index, (request, file) in enumerate(requested)
    ]
    requested_ids = {window.file.id for window in opened}
    others = sorted(
        (window for window in windows if window.file.id not in requested_ids),
        key=lambda window: (window.last_access_time, window.file.id),
    )
    space = 0 if command.close_all_others else max(0, command.max_open - len(opened))
    kept_windows = others[len(others) - space :] if space < len(others) else others
    closed = [window for window in others if window not in kept_windows]
    cause = "{} least recently used file(s) due to open file limit"
    if command.close_all_others:
        cause = "{} file(s) due to close_all_others=True"
    return WindowPlan(
        windows=_by_name([*kept_windows, *opened]),
        opened=tuple(opened),
        closed=tuple(window.file.id for window in closed),
        message=_opened_note(opened, before) + _closed_note(closed, cause),
    )


class NoSpaceError(FailedPreconditionError):
    """Opening files would leave no space for the conversation.

    Attributes:
        fitting: How many of the requested files, from the first, would fit.
    """

    fitting = 0


def check_space(use: PromptUse, opening: WindowPlan, max_bytes: int) -> None:
    """Raises if windows leave too little space for messages in the agent's prompt.

    Args:
        use: The space that memory takes with the windows.
        opening: The windows.
        max_bytes: Bytes that blocks and folders may take together; 0 for the limit of blocks.

    Raises:
        NoSpaceError: They take more (``CONTEXT_WINDOW_EXCEEDED``). The message tells the model
            which files are open and how to free space.
    """
    limit = max_bytes or use.limit
    total = use.blocks + use.directories
    if limit is None or total <= limit:
        return
    requested_ids = {window.file.id for window in opening.opened}
    others = [window for window in opening.windows if window.file.id not in requested_ids]
    free = max(0, limit - total + sum(use.files[window.file.id] for window in opening.opened))
    fitting, used_bytes = 0, 0
    for window in opening.opened:
        used_bytes += use.files[window.file.id]
        if used_bytes > free:
            break
        fitting += 1
    message = (
        f"Cannot open {_sizes(opening.opened, use)}: there is space for {free} bytes of files, so "
        "that enough of the context window is left for the conversation. Nothing was changed."
    )
    if others:
        message += (
            f" Already open: {_sizes(others, use)}. Call open_files with close_all_others=true to "
            "close these, or open fewer lines"
        )
    else:
        message += " No other file is open: open fewer files at once or fewer lines"
    message += (
        " with offset and length, for example offset=0 and length=100; grep_files and "
        "semantic_search_files read files without opening them."
    )
    error = NoSpaceError(
        message,
        reason=Reason.CONTEXT_WINDOW_EXCEEDED,
        metadata={"size": total, "limit": limit, "fitting_files": fitting},
    )
    error.fitting = fitting
    raise error


def choose_to_fit(
    windows: Sequence[FileWindow], sizes: Mapping[str, int], excess: int
) -> Sequence[FileWindow]:
    """Returns the least recently used windows to close so that a prompt shrinks by `excess`.

    Args:
        windows: The open windows.
        sizes: UTF-8 bytes rendered of each, by id of file.
        excess: Bytes to save; the note about closed files is taken into account.
    """
    chosen: list[FileWindow] = []
    needed = excess + _NOTE_BYTES
    for window in sorted(windows, key=lambda window: (window.last_access_time, window.file.id)):
        if needed <= 0:
            break
        chosen.append(window)
        needed -= sizes[window.file.id] - len(window.file.name.encode("utf-8", "replace"))
    return chosen


def plan_closing(
    names: Collection[str], files: Mapping[str, AttachedFile], windows: Sequence[FileWindow]
) -> WindowPlan:
    """Plans the closing of files; files that are not open are ignored.

    Args:
        names: Names of the files to close; none means all.
        files: The named files that are attached, by name.
        windows: The open windows.

    Raises:
        UnknownFileError: No attached file has that name.
    """
    for name in names:
        if name not in files:
            raise UnknownFileError(name)
    closed = {window.file.id for window in windows if not names or window.file.name in names}
    return WindowPlan(
        windows=_by_name(window for window in windows if window.file.id not in closed),
        opened=(),
        closed=tuple(sorted(closed)),
        message="",
    )


def meant_names(names: Sequence[str], attached: Collection[str]) -> list[str]:
    """Returns the names of the attached files that a model means by names.

    A model may copy a name as the prompt shows it, with its special characters escaped, and writes
    composed letters where the file of a Mac has decomposed ones. A name that fits several files
    is left as it is.

    Args:
        names: Names as the model wrote them.
        attached: All names of attached files.
    """
    by_form: dict[str, set[str]] = {}
    for name in attached:
        for form in (name, attribute(name)):
            by_form.setdefault(normalise(form), set()).add(name)
    attached_names = set(attached)

    def meant(name: str) -> str:
        fitting = by_form.get(normalise(name), set())
        return next(iter(fitting)) if name not in attached_names and len(fitting) == 1 else name

    return [meant(name) for name in names]


def not_attached(name: str, names: Collection[str]) -> NotFoundError:
    """Returns the error for a file that is not attached, with the most similar names.

    Args:
        name: The requested name.
        names: All names of attached files.
    """
    similar_names = nearest(name, names, NAMES_SHOWN)
    listed = ", ".join(similar_names)
    message = f"{name} not attached - did you get the filename correct?"
    if not names:
        message += " Currently you have no files attached."
    else:
        message += f" Currently you have the following files attached: [{listed}]"
    if len(similar_names) < len(names):
        message += f" (the {len(similar_names)} most similar names of {len(names)})"
    return NotFoundError(message, reason=Reason.FILE_NOT_FOUND, metadata={"file_name": name})


def nearest(name: str, names: Collection[str], count: int) -> list[str]:
    """Returns the names most similar to a name; all of them, sorted, if there are few.

    Similarity is the Dice coefficient of the pairs of adjacent letters. Unlike an edit distance
    it takes time linear in the length of the names.
    """
    if len(names) <= count:
        return sorted(names)
    pairs = _pairs(name)

    def similarity(other: str) -> float:
        others = _pairs(other)
        return 2 * len(pairs & others) / (len(pairs) + len(others) or 1)

    return sorted(names, key=lambda other: (-similarity(other), other))[:count]


def _pairs(name: str) -> set[str]:
    text = name.casefold()
    return {text[at : at + 2] for at in range(len(text) - 1)}


def _readable(request: WindowRequest, files: Mapping[str, AttachedFile]) -> AttachedFile:
    name = request.file_name
    file = files.get(name)
    if file is None:
        raise UnknownFileError(name)
    if file.content is ContentState.FAILED:
        raise _unreadable(file, f"File {name} could not be read: {file.error}")
    if file.content is ContentState.STORED:
        raise _unreadable(file, f"File {name} is still being read; open it again in a moment")
    if request.offset and request.offset >= file.line_count:
        raise OutOfRangeError(
            f"File {name} has only {file.line_count} lines, but requested offset "
            f"{request.offset} is out of range",
            metadata={"file_name": name, "line_count": file.line_count, "offset": request.offset},
        )
    return file


def _window(request: WindowRequest, file: AttachedFile, moment: datetime) -> FileWindow:
    start = (request.offset or 0) + 1
    end = 0
    if request.length is not None:
        # The window of an empty file ends at line 0, which means the whole file.
        end = min(start + request.length - 1, file.line_count)
    return FileWindow(file, start, end, moment)


def _opened_note(opened: Sequence[FileWindow], before: Mapping[str, FileWindow]) -> str:
    descriptions = [_described(window, before.get(window.file.id)) for window in opened]
    if len(descriptions) == 1:
        return f"* Opened {descriptions[0]}"
    return f"* Opened {len(descriptions)} files: {', '.join(descriptions)}"


def _sizes(windows: Sequence[FileWindow], use: PromptUse) -> str:
    descriptions = [f"{window.file.name} ({use.files[window.file.id]} bytes)" for window in windows]
    listed = ", ".join(descriptions[:NAMES_SHOWN])
    more = len(descriptions) - NAMES_SHOWN
    return f"{listed} and {more} more" if more > 0 else listed


def _closed_note(closed: Sequence[FileWindow], cause: str) -> str:
    if not closed:
        return ""
    names = ", ".join(window.file.name for window in closed)
    return f"\nNote: Closed {cause.format(len(closed))}: {names}"


def _by_name(windows: Iterable[FileWindow]) -> tuple[FileWindow, ...]:
    return tuple(sorted(windows, key=lambda window: window.file.name))


def _described(window: FileWindow, before: FileWindow | None) -> str:
    text = window.file.name
    if not window.is_whole:
        text += f" (lines {window.start}-{window.last_line})"
    if before is None or (before.start, before.end) == (window.start, window.end):
        return text
    if before.is_whole:
        return f"{text} (previously full file)"
    # The stored end: the file may have fewer lines than when the window was opened.
    return f"{text} (previously lines {before.start}-{before.end or before.last_line})"


def _unreadable(file: AttachedFile, message: str) -> StrataError:
    return FailedPreconditionError(
        message,
        reason=Reason.EDIT_NOT_APPLICABLE,
        metadata={"file_name": file.name, "file_id": file.id},
    )
