"""Serves archives, and the archival memory of agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strata.api.archival.v1 import agent_archive_service_pb2 as agent_pb
from strata.api.archival.v1 import agent_archive_service_pb2_grpc as agent_grpc
from strata.api.archival.v1 import archive_service_pb2 as pb
from strata.api.archival.v1 import archive_service_pb2_grpc as pb_grpc
from strata.archival.convert import archives as convert
from strata.archival.domain.store import ArchiveStore
from strata.archival.search.rebuilds import ArchiveModels
from strata.shared.clock import Clock
from strata.shared.db import Page, decode_page_token, page_limit
from strata.shared.idempotency.keys import check_request_id
from strata.shared.ids import check_id
from strata.shared.search.embedding import EmbeddingModels
from strata.shared.search.reindexing.index_admin import to_proto

Context = Any
MAX_PAGE_SIZE = 500


class ArchiveServicer(pb_grpc.ArchiveServiceServicer):
    """Serves archives."""

    def __init__(
        self,
        store: ArchiveStore,
        models: EmbeddingModels,
        rebuilds: ArchiveModels,
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._models = models
        self._rebuilds = rebuilds
        self._clock = clock
        self._wake = wake

    async def CreateArchive(
        self, request: pb.CreateArchiveRequest, context: Context
    ) -> pb.CreateArchiveResponse:
        """Creates an archive."""
        archive = convert.to_archive(request, self._models, self._clock.now())
        stored_archive = await self._store.create(
            archive, request.agent_id, convert.to_request(request)
        )
        return pb.CreateArchiveResponse(archive=convert.archive_to_proto(stored_archive))

    async def GetArchive(
        self, request: pb.GetArchiveRequest, context: Context
    ) -> pb.GetArchiveResponse:
        """Returns an archive."""
        check_id(request.archive_id, "archive", field="archive_id")
        archive = await self._store.get(request.archive_id)
        return pb.GetArchiveResponse(archive=convert.archive_to_proto(archive))

    async def ListArchives(
        self, request: pb.ListArchivesRequest, context: Context
    ) -> pb.ListArchivesResponse:
        """Lists archives by id."""
        if request.agent_id:
            check_id(request.agent_id, "agent", field="agent_id")
        scope = f"ListArchives {request.agent_id}"
        limit = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        cursor = decode_page_token(scope, request.page_token, (str,))
        archives = await self._store.page(request.agent_id, limit + 1, cursor)
        page = Page.cut(archives, limit, scope, lambda archive: (archive.id,))
        return pb.ListArchivesResponse(
            archives=[convert.archive_to_proto(archive) for archive in page.rows],
            next_page_token=page.next_page_token,
        )

    async def UpdateArchive(
        self, request: pb.UpdateArchiveRequest, context: Context
    ) -> pb.UpdateArchiveResponse:
        """Changes an archive."""
        change = convert.to_change(request)
        archive = await self._store.update(
            request.archive_id, change, self._clock.now(), convert.to_request(request)
        )
        return pb.UpdateArchiveResponse(archive=convert.archive_to_proto(archive))

    async def DeleteArchive(
        self, request: pb.DeleteArchiveRequest, context: Context
    ) -> pb.DeleteArchiveResponse:
        """Deletes an archive with its passages."""
        check_id(request.archive_id, "archive", field="archive_id")
        deleted = await self._store.delete(request.archive_id)
        self._wake()
        return pb.DeleteArchiveResponse(deleted_passages=deleted)

    async def AttachArchive(
        self, request: pb.AttachArchiveRequest, context: Context
    ) -> pb.AttachArchiveResponse:
        """Attaches an archive to an agent."""
        check_id(request.agent_id, "agent", field="agent_id")
        check_id(request.archive_id, "archive", field="archive_id")
        archive = await self._store.attach(request.agent_id, request.archive_id)
        return pb.AttachArchiveResponse(archive=convert.archive_to_proto(archive))

    async def DetachArchive(
        self, request: pb.DetachArchiveRequest, context: Context
    ) -> pb.DetachArchiveResponse:
        """Detaches an archive from an agent."""
        check_id(request.agent_id, "agent", field="agent_id")
        check_id(request.archive_id, "archive", field="archive_id")
        await self._store.detach(request.agent_id, request.archive_id)
        return pb.DetachArchiveResponse()

    async def ReindexArchive(
        self, request: pb.ReindexArchiveRequest, context: Context
    ) -> pb.ReindexArchiveResponse:
        """Rebuilds the index of an archive."""
        check_id(request.archive_id, "archive", field="archive_id")
        if request.action == pb.REINDEX_ACTION_STATUS:
            job = await self._rebuilds.latest(request.archive_id)
        elif request.action == pb.REINDEX_ACTION_FINISH:
            job = await self._rebuilds.finish(request.archive_id)
        elif request.action == pb.REINDEX_ACTION_ROLL_BACK:
            job = await self._rebuilds.roll_back(request.archive_id)
        else:
            request_id = check_request_id(request.request_id)
            job = await self._rebuilds.start(
                request.archive_id, request.embedding_model, request_id
            )
        return pb.ReindexArchiveResponse(
            total=job.total,
            done=job.progress.done,
            complete=job.phase.new_serves,
            reindex=to_proto(job),
        )


class AgentArchiveServicer(agent_grpc.AgentArchiveServiceServicer):
    """Serves the archival memory of agents to the agent loop."""

    def __init__(self, store: ArchiveStore, wake: Callable[[], None]) -> None:
        self._store = store
        self._wake = wake

    async def PrepareAgent(
        self, request: agent_pb.PrepareAgentRequest, context: Context
    ) -> agent_pb.PrepareAgentResponse:
        """Registers an agent."""
        check_id(request.agent_id, "agent", field="agent_id")
        await self._store.prepare(request.agent_id)
        return agent_pb.PrepareAgentResponse()

    async def GetAgentStats(
        self, request: agent_pb.GetAgentStatsRequest, context: Context
    ) -> agent_pb.GetAgentStatsResponse:
        """Returns counts of an agent's archival memory."""
        check_id(request.agent_id, "agent", field="agent_id")
        stats = await self._store.stats(request.agent_id)
        return convert.stats_to_proto(stats)

    async def ReleaseAgent(
        self, request: agent_pb.ReleaseAgentRequest, context: Context
    ) -> agent_pb.ReleaseAgentResponse:
        """Deletes an agent's archival memory; shared archives are only detached."""
        check_id(request.agent_id, "agent", field="agent_id")
        deleted = await self._store.release(request.agent_id)
        self._wake()
        return agent_pb.ReleaseAgentResponse(deleted_passages=deleted)
