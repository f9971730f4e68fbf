"""Calls for vector indexes and their rebuilds."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.common.v1 import search_pb2 as pb
from strata.cli.archival.references import archive_id
from strata.cli.client import GatewayClient
from strata.protocol.errors import NotFoundError, Reason

COLLECTIONS = ("passages", "files", "messages")


@dataclass(frozen=True, slots=True)
class WholeIndex:
    """An index that all projects of a partition share.

    Attributes:
        stub: Stub of its service.
        name: Name of the collection.
        partition: The partition; empty for the default one.
    """

    stub: Any
    name: str
    partition: str = ""

    async def state(self) -> pb.IndexState:
        """Returns which model serves the index, and how many texts wait for it."""
        reply = await self.stub.GetIndex(
            pb.GetIndexRequest(collection=self.name, partition=self.partition)
        )
        state: pb.IndexState = reply.index
        return state

    async def latest(self) -> pb.Reindex:
        """Returns the newest rebuild.

        Raises:
            NotFoundError: The index was never rebuilt.
        """
        state = await self.state()
        if not state.HasField("reindex"):
            raise NotFoundError(f"{self.name} was never rebuilt.", reason=Reason.REINDEX_NOT_FOUND)
        return state.reindex

    async def start(self, model: str) -> pb.Reindex:
        """Starts a rebuild."""
        request = pb.StartReindexRequest(
            request_id=str(uuid.uuid4()),
            collection=self.name,
            embedding_model=model,
            partition=self.partition,
        )
        return _reindex(await self.stub.StartReindex(request))

    async def finish(self) -> pb.Reindex:
        """Drops the old index after a rebuild."""
        request = pb.FinishReindexRequest(collection=self.name, partition=self.partition)
        return _reindex(await self.stub.FinishReindex(request))

    async def roll_back(self) -> pb.Reindex:
        """Switches back to the old index."""
        request = pb.RollBackReindexRequest(collection=self.name, partition=self.partition)
        return _reindex(await self.stub.RollBackReindex(request))


@dataclass(frozen=True, slots=True)
class ArchiveIndex:
    """The index of one archive; same methods as `WholeIndex`."""

    client: GatewayClient
    archive_id: str

    async def latest(self) -> pb.Reindex:
        """See `WholeIndex.latest`."""
        return await self._act(archive_pb.REINDEX_ACTION_STATUS)

    async def start(self, model: str) -> pb.Reindex:
        """See `WholeIndex.start`."""
        return await self._act(
            archive_pb.REINDEX_ACTION_START, embedding_model=model, request_id=str(uuid.uuid4())
        )

    async def finish(self) -> pb.Reindex:
        """See `WholeIndex.finish`."""
        return await self._act(archive_pb.REINDEX_ACTION_FINISH)

    async def roll_back(self) -> pb.Reindex:
        """See `WholeIndex.roll_back`."""
        return await self._act(archive_pb.REINDEX_ACTION_ROLL_BACK)

    async def _act(self, action: archive_pb.ReindexAction.ValueType, **fields: str) -> pb.Reindex:
        request = archive_pb.ReindexArchiveRequest(
            archive_id=self.archive_id, action=action, **fields
        )
        return _reindex(await self.client.archives.ReindexArchive(request))


async def index_of(
    client: GatewayClient, name: str, partition: str = ""
) -> WholeIndex | ArchiveIndex:
    """Returns the index of a collection on a partition, or of an archive by id or name.

    Raises:
        NotFoundError: There is no archive of that name.
    """
    if name in COLLECTIONS:
        return whole_index(client, name, partition)
    return ArchiveIndex(client, await archive_id(client, name))


def whole_index(client: GatewayClient, name: str, partition: str = "") -> WholeIndex:
    """Returns an index that all projects of a partition share."""
    stub: Any = client.message_index if name == "messages" else client.passage_index
    return WholeIndex(stub, name, partition)


def _reindex(reply: Any) -> pb.Reindex:
    reindex: pb.Reindex = reply.reindex
    return reindex
