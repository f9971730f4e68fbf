"""The services of archival memory: convert, act, convert back."""

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
