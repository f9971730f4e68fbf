"""Opening and closing windows into files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.domain.ports import Request
from strata.core_memory.files.domain.opening import (
    check_requests,
    not_attached,
    plan_closing,
    plan_opening,
)
from strata.core_memory.files.domain.windows import (
    DEFAULT_MAX_OPEN,
    AttachedFile,
    Decide,
    Opened,
    Opening,
    OpenWindows,
    UnknownFileError,
    Window,
    WindowRequest,
    WindowStore,
)
from strata.shared.clock import Clock

_NO_RECEIPT: Receipt[Opened] = Receipt(Request(id="", digest=b""), lambda _: b"")


class Windows:
    """The windows of agents into the files of their folders."""

    def __init__(self, store: WindowStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def open(self, command: OpenWindows, receipt: Receipt[Opened]) -> Opened:
        """Opens windows, and closes the least recently used ones beyond the limit.

        Nothing is opened or closed unless every name and range is right. The messages of
        what is raised are written for the model.

        Raises:
            InvalidArgumentError: Nothing or too much is asked, or a range makes no sense.
            NotFoundError: A file is not attached (``FILE_NOT_FOUND``).
            FailedPreconditionError: A file cannot be read, or not yet
                (``EDIT_NOT_APPLICABLE``).
            OutOfRangeError: A window begins after the end of its file.
            ReplayedError: The request was done before.
            AlreadyExistsError: Its id was used for something else (``REQUEST_ID_REUSED``).
        """
        check_requests(command)

        def decide(files: Mapping[str, AttachedFile], windows: Sequence[Window]) -> Opening:
            return plan_opening(command, files, windows, self._clock.now())

        names = [each.file_name for each in command.requests]
        return await self._change(command.agent_id, names, receipt, decide)

    async def open_first(self, agent_id: str, folder_id: str, count: int) -> None:
        """Opens the first files of an attached folder, by name, as far as they can be read.

        Args:
            agent_id: The agent.
            folder_id: The folder.
            count: How many at most.
        """
        found = await self._store.first_names(agent_id, folder_id, count)
        if not found:
            return

        def decide(files: Mapping[str, AttachedFile], windows: Sequence[Window]) -> Opening:
            # What was deleted meanwhile is left out.
            requests = tuple(WindowRequest(name) for name in found if name in files)
            command = OpenWindows(agent_id, requests, max_open=max(DEFAULT_MAX_OPEN, count))
            if not requests:
                return Opening(tuple(windows), (), (), "")
            return plan_opening(command, files, windows, self._clock.now())

        await self._change(agent_id, found, _NO_RECEIPT, decide)

    async def close(self, agent_id: str, names: Sequence[str]) -> Opened:
        """Closes windows; those that are not open stay closed.

        Args:
            agent_id: The agent.
            names: ``FOLDER/FILE`` each; nothing means every window.

        Raises:
            NotFoundError: A file is not attached (``FILE_NOT_FOUND``); nothing is closed.
        """

        def decide(files: Mapping[str, AttachedFile], windows: Sequence[Window]) -> Opening:
            return plan_closing(names, files, windows)

        return await self._change(agent_id, names, _NO_RECEIPT, decide)

    async def _change(
        self, agent_id: str, names: Sequence[str], receipt: Receipt[Opened], decide: Decide
    ) -> Opened:
        try:
            return await self._store.change(agent_id, names, receipt, decide)
        except UnknownFileError as unknown:
            attached = await self._store.names(agent_id)
            # Comparing thousands of names takes a while.
            raise await asyncio.to_thread(not_attached, unknown.name, attached) from None
