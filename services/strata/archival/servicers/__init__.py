"""The gRPC servicers of archival memory: convert requests, call the domain, convert results."""

from strata.archival.servicers.archives import AgentArchiveServicer, ArchiveServicer
from strata.archival.servicers.files import FileIndexServicer
from strata.archival.servicers.indexes import PassageIndexServicer
from strata.archival.servicers.passages import PassageServicer

__all__ = [
    "AgentArchiveServicer",
    "ArchiveServicer",
    "FileIndexServicer",
    "PassageIndexServicer",
    "PassageServicer",
]
