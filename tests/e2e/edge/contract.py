"""The errors that the contracts declare, read from the comments of the protos."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import google.protobuf
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import MethodDescriptor
from grpc_tools import protoc

from strata.gateway.registry import public_services

_PROTOS = Path(__file__).parents[3] / "protos"
_WELL_KNOWN = Path(protoc.__file__).parent / "_proto"
_STATUS = (
    "CANCELLED|INVALID_ARGUMENT|DEADLINE_EXCEEDED|NOT_FOUND|ALREADY_EXISTS|PERMISSION_DENIED|"
    "RESOURCE_EXHAUSTED|FAILED_PRECONDITION|ABORTED|UNIMPLEMENTED|INTERNAL|UNAVAILABLE|DATA_LOSS|"
    "UNAUTHENTICATED|OUT_OF_RANGE"
)
_PROMISE = re.compile(rf"\b({_STATUS})\b(?: \(([^)]*)\))?")
_REASON = re.compile(r"\b[A-Z][A-Z_]+[A-Z]\b")
# Errors of the transport, the same for every method and therefore not repeated in each comment.
_ALWAYS = frozenset(
    {
        ("INVALID_ARGUMENT", "MALFORMED_MESSAGE"),
        ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE"),
        ("UNIMPLEMENTED", "NOT_BUILT"),
        ("PERMISSION_DENIED", "SCOPE_MISSING"),
    }
)

Promise = tuple[str, str]
"""A status and a reason."""


@dataclass(frozen=True)
class Method:
    """A public method and the errors that its contract names."""

    descriptor: MethodDescriptor
    promised: frozenset[Promise]

    @property
    def path(self) -> str:
        """As in the ``:path`` of a request."""
        return f"/{self.descriptor.containing_service.full_name}/{self.descriptor.name}"

    @property
    def name(self) -> str:
        """``Service.Method``."""
        return f"{self.descriptor.containing_service.name}.{self.descriptor.name}"


@cache
def public_methods() -> Mapping[str, Method]:
    """Every public method by ``Service.Method``."""
    methods = {}
    promises = dict(_promises())
    for service in public_services():
        for descriptor in service.methods:
            name = f"{service.name}.{descriptor.name}"
            methods[name] = Method(descriptor, promises[descriptor.full_name] | _ALWAYS)
    return methods


@cache
def statuses_of_reasons() -> Mapping[str, Collection[str]]:
    """Reason to the statuses it is sent with, as the comments of ``ErrorReason`` say."""
    by_reason = {}
    statuses: Collection[str] = ()
    source = (_PROTOS / "strata/api/errors/v1/error_reason.proto").read_text()
    for comment, reason in re.findall(r"// (.*)\n(?:  //.*\n)*  ERROR_REASON_(\w+) =", source):
        named = re.match(rf"((?:{_STATUS})(?: or (?:{_STATUS}))*)[:,]", comment)
        # A comment without a status has the status of the previous value.
        statuses = named.group(1).split(" or ") if named else statuses
        by_reason[reason] = statuses
    return by_reason


def _promises() -> Iterator[tuple[str, frozenset[Promise]]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "all.binpb"
        names = sorted(str(path.relative_to(_PROTOS)) for path in _PROTOS.rglob("*.proto"))
        arguments = [f"-I{_PROTOS}", f"-I{_WELL_KNOWN}", "--include_source_info", f"-o{out}"]
        assert protoc.main(["protoc", *arguments, *names]) == 0, google.protobuf.__version__
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    for file in files.file:
        comments = {tuple(at.path): at.leading_comments for at in file.source_code_info.location}
        for number, service in enumerate(file.service):
            general = _promised(comments.get((6, number), ""))
            own: frozenset[Promise] = frozenset()
            for index, method in enumerate(service.method):
                comment = comments.get((6, number, 2, index), "").strip()
                # "The same without waiting": the promises of the previous method apply, too.
                own = _promised(comment) | (own if comment.startswith("The same") else frozenset())
                yield f"{file.package}.{service.name}.{method.name}", general | own


def _promised(comment: str) -> frozenset[Promise]:
    """Returns the (status, reason) pairs of a comment; a status alone allows all its reasons."""
    promises: set[Promise] = set()
    for status, inside in _PROMISE.findall(" ".join(comment.split())):
        reasons = _REASON.findall(inside)
        if not reasons:
            reasons = [reason for reason, of in statuses_of_reasons().items() if status in of]
        promises.update((status, reason) for reason in reasons)
    return frozenset(promises)


UNBUILT = frozenset(
    {
        *("AdminService.ListAuditEvents", "AdminService.EraseSubject"),
        *("AgentService.ExportAgent", "AgentService.ImportAgent"),
    }
)
METHODS = sorted(public_methods())
BUILT = [name for name in METHODS if name not in UNBUILT]
