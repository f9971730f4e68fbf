"""Stores images of messages in PostgreSQL: once per project, deleted with their last message.

Storing a message locks the rows of its images until the commit. A deletion locks them too before
it checks for messages that still use them. So the second of the two waits for the first and sees
its changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strata.protocol.errors import NotFoundError, Reason
from strata.recall.domain.messages import Message, StoredImage
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, sql

# The update only serves to lock the row of an existing image.
_STORE = sql(
    """
    WITH image AS (
        INSERT INTO recall.images (project_id, id, media_type, data, store_time)
        SELECT :project, i.id, i.media_type, i.data, now()
        FROM unnest(CAST(:ids AS text[]), CAST(:types AS text[]), CAST(:datas AS bytea[]))
             AS i(id, media_type, data)
        ORDER BY i.id
        ON CONFLICT (project_id, id) DO UPDATE SET store_time = now()
    )
    INSERT INTO recall.message_images (project_id, message_id, image_id, agent_id)
    SELECT :project, m.message_id, m.image_id, :agent
    FROM unnest(CAST(:message_ids AS text[]), CAST(:image_ids AS text[]))
         AS m(message_id, image_id)
    """
)
_COPY = sql(
    """
    INSERT INTO recall.message_images (project_id, message_id, image_id, agent_id)
    SELECT m.project_id, copied.copy_id, m.image_id, m.agent_id
    FROM unnest(CAST(:ids AS text[]), CAST(:copies AS text[])) AS copied(id, copy_id)
    JOIN recall.message_images m ON m.project_id = :project AND m.message_id = copied.id
    """
)
_LOCK = sql(
    """
    SELECT id FROM recall.images
    WHERE project_id = :project AND id = ANY(CAST(:ids AS text[])) ORDER BY id FOR UPDATE
    """
)
_DELETE_UNUSED = sql(
    """
    DELETE FROM recall.images i
    WHERE i.project_id = :project AND i.id = ANY(CAST(:ids AS text[])) AND NOT EXISTS (
        SELECT FROM recall.message_images m
        WHERE m.project_id = :project AND m.image_id = i.id)
    """
)
_GET = sql("SELECT media_type, data FROM recall.images WHERE project_id = :project AND id = :id")


class PostgresImageStore:
    """Implements `ImageStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, image_id: str) -> StoredImage:
        """Returns an image."""
        async with self._database.transaction(read_only=True) as connection:
            result = await connection.execute(_GET, {"project": current_project(), "id": image_id})
            row = result.one_or_none()
        if row is None:
            raise NotFoundError(
                f"There is no image {image_id}.",
                reason=Reason.IMAGE_NOT_FOUND,
                metadata={"id": image_id},
            )
        return StoredImage(image_id, row.media_type, bytes(row.data))


async def store_images(
    connection: DatabaseConnection, project: str, agent_id: str, messages: Iterable[Message]
) -> None:
    """Stores the images of new messages; does nothing without images."""
    pairs = [(message.id, image) for message in messages for image in message.images]
    if not pairs:
        return
    images = {image.id: image for _, image in pairs}
    uses = sorted({(message_id, image.id) for message_id, image in pairs})
    await connection.execute(
        _STORE,
        {
            "project": project,
            "agent": agent_id,
            "ids": list(images),
            "types": [image.media_type for image in images.values()],
            "datas": [image.data for image in images.values()],
            "message_ids": [message_id for message_id, _ in uses],
            "image_ids": [image_id for _, image_id in uses],
        },
    )


async def copy_images(
    connection: DatabaseConnection, project: str, messages: Sequence[Message], copies: Sequence[str]
) -> None:
    """Attaches the images of messages to their copies."""
    made = [
        (message.id, copy_id)
        for message, copy_id in zip(messages, copies, strict=True)
        if message.image_ids()
    ]
    if made:
        ids, copy_ids = zip(*made, strict=True)
        await connection.execute(
            _COPY, {"project": project, "ids": list(ids), "copies": list(copy_ids)}
        )


async def delete_unused_images(
    connection: DatabaseConnection, project: str, image_ids: Sequence[str] | None
) -> None:
    """Deletes the given images that no message uses.

    Args:
        connection: In the transaction that deleted messages.
        project: The project.
        image_ids: Images of the deleted messages; None and empty are the same.
    """
    if image_ids:
        bound = {"project": project, "ids": list(image_ids)}
        await connection.execute(_LOCK, bound)
        # A separate statement: it sees changes that were committed during the wait for the locks.
        await connection.execute(_DELETE_UNUSED, bound)
