"""Opens and closes windows of agents into files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.domain.prompt.compilation import FileLimits
from strata.core_memory.domain.prompt.limits import PromptLimit
from strata.core_memory.files.domain.file_windows import (
    DEFAULT_MAX_OPEN,
    AttachedFile,
    CheckUse,
    FileWindow,
    FileWindowStore,
    OpenFilesResult,
    OpenWindows,
    PlanWindows,
    PromptUse,
    UnknownFileError,
    WindowPlan,
    WindowRequest,
)
from strata.core_memory.files.domain.window_plans import (
    NoSpaceError,
    check_requests,
    check_space,
    choose_to_fit,
    meant_names,
    not_attached,
    plan_closing,
    plan_opening,
)
from strata.shared.clock import Clock
from strata.shared.idempotency.keys import RequestKey

_NO_RECEIPT: Receipt[OpenFilesResult] = Receipt(RequestKey(), lambda _: b"")


class Windows:
    """The windows of agents into the files of their folders."""

    def __init__(self, store: FileWindowStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def open(
        self, command: OpenWindows, receipt: Receipt[OpenFilesResult]
    ) -> OpenFilesResult:
        """Opens windows, and closes the least recently used ones beyond the limit.

        Nothing is opened or closed unless every name and range is valid. Error messages are
        written for the model.

        Raises:
            InvalidArgumentError: There are no or too many files, or a range is invalid.
            NotFoundError: A file is not attached (``FILE_NOT_FOUND``), or there is no such agent
                (``AGENT_NOT_FOUND``).
            FailedPreconditionError: A file cannot be read, or not yet
                (``EDIT_NOT_APPLICABLE``), or the prompt has no space for the files
                (``CONTEXT_WINDOW_EXCEEDED``).
            OutOfRangeError: A window starts after the end of its file.
            ReplayedError: The request was done before.
            AlreadyExistsError: Its id was used for something else (``REQUEST_ID_REUSED``).
        """
        if not command.complete:
            # Requests of clients have no limits. The agent's tool sends the agent's limits.
            command = command.within(await self._store.prompt_limit(command.agent_id))

        def plan(names: Sequence[str]) -> PlanWindows:
            requests = tuple(
                replace(request, file_name=name)
                for request, name in zip(command.requests, names, strict=True)
            )
            corrected = replace(command, requests=requests)
            check_requests(corrected)
            return lambda files, windows: plan_opening(corrected, files, windows, self._clock.now())

        def check(use: PromptUse, opening: WindowPlan) -> None:
            check_space(use, opening, command.max_bytes)

        names = [request.file_name for request in command.requests]
        return await self._change(command.agent_id, names, receipt, plan, (command.limits, check))

    async def open_first(self, agent_id: str, folder_id: str, count: int) -> None:
        """Opens the first readable files, by name, of an attached folder.

        Opens fewer if the prompt of the agent has no space for all.

        Args:
            agent_id: The agent.
            folder_id: The folder.
            count: Maximum of files.
        """
        prompt_limit = await self._store.prompt_limit(agent_id)
        if not prompt_limit.max_open:
            prompt_limit = replace(prompt_limit, max_open=max(DEFAULT_MAX_OPEN, count))
        names = await self._store.first_names(
            agent_id, folder_id, min(count, prompt_limit.max_open)
        )
        while names:
            try:
                await self._open_some(agent_id, names, prompt_limit)
            except NoSpaceError as error:
                names = names[: min(error.fitting, len(names) - 1)]
            else:
                return

    async def _open_some(
        self, agent_id: str, names: Sequence[str], prompt_limit: PromptLimit
    ) -> None:
        opening = OpenWindows(agent_id, (), max_open=0, view_chars=0).within(prompt_limit)

        def decide(files: Mapping[str, AttachedFile], windows: Sequence[FileWindow]) -> WindowPlan:
            # Skip files that were deleted meanwhile.
            requests = tuple(WindowRequest(name) for name in names if name in files)
            command = replace(opening, requests=requests)
            if not requests:
                return WindowPlan(tuple(windows), (), (), "")
            return plan_opening(command, files, windows, self._clock.now())

        def check(use: PromptUse, opened: WindowPlan) -> None:
            check_space(use, opened, opening.max_bytes)

        await self._change(agent_id, names, _NO_RECEIPT, lambda _: decide, (opening.limits, check))

    async def close_to_fit(
        self, agent_id: str, limits: FileLimits, excess: int, *, preview: bool
    ) -> list[str]:
        """Closes windows, least recently used first, until the prompt is `excess` bytes smaller.

        Args:
            agent_id: The agent.
            limits: How much of files its prompt renders.
            excess: UTF-8 bytes to save; if all windows together are smaller, all are closed.
            preview: Return the files that would be closed, and close none.

        Returns:
            Names of the closed files, in the order of closing.
        """
        closed = await self._store.close_to_fit(
            agent_id,
            limits,
            lambda windows, sizes: choose_to_fit(windows, sizes, excess),
            preview=preview,
        )
        return [window.file.name for window in closed]

    async def close(self, agent_id: str, names: Sequence[str]) -> OpenFilesResult:
        """Closes windows; ignores files that are not open.

        Args:
            agent_id: The agent.
            names: Names ``FOLDER/FILE``; none means every window.

        Raises:
            NotFoundError: A file is not attached (``FILE_NOT_FOUND``), or there is no such agent
                (``AGENT_NOT_FOUND``); nothing is closed.
        """

        def plan(names: Sequence[str]) -> PlanWindows:
            return lambda files, windows: plan_closing(names, files, windows)

        return await self._change(agent_id, names, _NO_RECEIPT, plan)

    async def _change(
        self,
        agent_id: str,
        names: Sequence[str],
        receipt: Receipt[OpenFilesResult],
        plan: Callable[[Sequence[str]], PlanWindows],
        check: tuple[FileLimits, CheckUse] | None = None,
    ) -> OpenFilesResult:
        """Changes windows; a name that no file has is looked up once in the forms it may have."""
        try:
            return await self._store.change(agent_id, names, receipt, plan(names), check)
        except UnknownFileError as unknown:
            wrong = unknown.name
        attached = await self._store.names(agent_id)
        # In a thread: there may be thousands of names to compare.
        meant = await asyncio.to_thread(meant_names, names, attached)
        if meant != list(names):
            try:
                return await self._store.change(agent_id, meant, receipt, plan(meant), check)
            except UnknownFileError as unknown:
                wrong = unknown.name
        raise await asyncio.to_thread(not_attached, wrong, attached)
