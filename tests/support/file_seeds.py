"""Inserts folders and files into the database as they are after upload and reading."""

from __future__ import annotations

import hashlib
from typing import Any

from strata.core_memory.files.text_extraction.pages import pages_of
from strata.shared.context import current_project
from strata.shared.db import Database, sql
from strata.shared.ids import new_id

_AGENT = sql(
    "INSERT INTO core_memory.prepared_agents (project_id, agent_id) VALUES (:project, :agent)"
)
_FOLDER = sql(
    """
    INSERT INTO core_memory.folders
        (project_id, id, name, description, instructions, create_time)
    VALUES (:project, :folder, :name, :description, :instructions, now())
    """
)
_ATTACH = sql(
    "INSERT INTO core_memory.folder_attachments (project_id, agent_id, folder_id)"
    " VALUES (:project, :agent, :folder)"
)
_CONTENT = sql(
    """
    INSERT INTO core_memory.contents (project_id, content_hash, size_bytes, media_type, format,
        state, error, line_count, char_count, create_time)
    VALUES (:project, :content, :size, 'text/plain', 'text', :state, :error, :lines, :chars, now())
    ON CONFLICT DO NOTHING
    """
)
_PAGES = sql(
    """
    INSERT INTO core_memory.content_pages
        (project_id, content_hash, page, first_line, line_count, text)
    SELECT :project, :content, p.page, p.first_line, p.line_count, p.text
    FROM unnest(CAST(:pages AS int[]), CAST(:firsts AS int[]), CAST(:counts AS int[]),
                CAST(:texts AS text[])) AS p(page, first_line, line_count, text)
    ON CONFLICT DO NOTHING
    """
)
_FILES = sql(
    """
    INSERT INTO core_memory.files (project_id, id, folder_id, name, media_type, content_hash,
        state, create_time, update_time)
    SELECT :project, f.id, :folder, f.name, 'text/plain', :content, :state, now(), now()
    FROM unnest(CAST(:ids AS text[]), CAST(:names AS text[])) AS f(id, name)
    """
)
_COUNTED = sql(
    """
    UPDATE core_memory.folders SET revision = revision + 1, file_count = file_count + :count
    WHERE project_id = :project AND id = :folder
    """
)
_STATES = {"text": "ready", "stored": "parsing", "failed": "failed"}


class FileSeeds:
    """Puts agents, folders and files of the calling project into a database.

    Args:
        database: Connects as the service's service role.
        page_chars: Size of the pages in characters; None for the product's size.
    """

    def __init__(self, database: Database, page_chars: int | None = None) -> None:
        self.database = database
        self._page_chars = page_chars

    async def agent(self, *folders: str) -> str:
        """Returns a new agent to which the folders are attached."""
        agent = new_id("agent")
        await self._run(_AGENT, agent=agent)
        for folder in folders:
            await self.attach(agent, folder)
        return agent

    async def attach(self, agent: str, folder: str) -> None:
        """Attaches a folder to an agent."""
        await self._run(_ATTACH, agent=agent, folder=folder)

    async def folder(self, name: str, *, description: str = "", instructions: str = "") -> str:
        """Returns a new folder."""
        folder = new_id("folder")
        await self._run(
            _FOLDER, folder=folder, name=name, description=description, instructions=instructions
        )
        return folder

    async def file(
        self,
        folder: str,
        name: str,
        value: str = "",
        *,
        state: str = "text",
        error: str = "",
    ) -> str:
        """Returns a new file; `state` is the state of its content."""
        return (await self.files(folder, [name], value, state=state, error=error))[0]

    async def files(
        self,
        folder: str,
        names: list[str],
        value: str = "",
        *,
        state: str = "text",
        error: str = "",
    ) -> list[str]:
        """Returns new files with the same content."""
        content = hashlib.sha256(f"{state} {value}".encode()).hexdigest()
        pages = list(self._pages(value)) if state == "text" else []
        await self._run(
            _CONTENT,
            content=content,
            size=len(value.encode()),
            state=state,
            error=error,
            lines=sum(len(lines) for _, lines in pages),
            chars=len(value),
        )
        await self._run(
            _PAGES,
            content=content,
            pages=list(range(len(pages))),
            firsts=[first for first, _ in pages],
            counts=[len(lines) for _, lines in pages],
            texts=["\n".join(lines) for _, lines in pages],
        )
        ids = [new_id("file") for _ in names]
        await self._run(
            _FILES, ids=ids, folder=folder, names=names, content=content, state=_STATES[state]
        )
        await self._run(_COUNTED, folder=folder, count=len(names))
        return ids

    def _pages(self, value: str) -> list[tuple[int, list[str]]]:
        if self._page_chars is None:
            return [(page.first_line, page.text.split("\n")) for page in pages_of([value])]
        pages: list[tuple[int, list[str]]] = []
        lines = value.split("\n") if value else []
        lines = lines[:-1] if value.endswith("\n") else lines
        for number, line in enumerate(lines, start=1):
            if not pages or sum(map(len, pages[-1][1])) >= self._page_chars:
                pages.append((number, []))
            pages[-1][1].append(line)
        return pages

    async def _run(self, statement: Any, **parameters: Any) -> None:
        async with self.database.transaction() as connection:
            await connection.execute(statement, {"project": current_project(), **parameters})
