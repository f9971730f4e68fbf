"""Generates the methods of the Python client from the public contracts, and a page about them.

`make proto` calls it. The output, `strata.client.generated` and a guide, is in the repository, and
`make check` compares it.

Fields of a request become keyword arguments of the method, comments of the contracts its
docstring. What the contracts do not say is in the tables below: names, and what a method returns
where a response has several fields.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    MethodDescriptor,
    ServiceDescriptor,
)
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from strata.client.calls.arguments import enum_names
from strata.gateway.registry import public_services

_ROOT = Path(__file__).resolve().parents[1]
_PROTOS = _ROOT / "protos"
_PACKAGE = _ROOT / "clients" / "python" / "strata" / "client" / "generated"
_PAGE = _ROOT / "docs" / "guides" / "python-calls.md"
_WIDTH = 100


@dataclass(frozen=True)
class _ByHand:
    """Methods of a service that are written by hand; all return a value.

    Attributes:
        module: The module in `strata.client.calls`.
        name: The class.
        rows: Arguments, result and summary for the guide, by the name of the method.
    """

    module: str
    name: str
    rows: Mapping[str, tuple[str, str, str]]


@dataclass(frozen=True)
class _Service:
    """How a service appears in the client.

    Attributes:
        attribute: The attribute of the client.
        noun: The object of its calls; left out of the names of methods.
        by_hand: The class in `strata.client.calls` with its methods that are written by hand, and
            their rows in the guide.
    """

    attribute: str
    noun: str
    by_hand: _ByHand | None = None


SERVICES: Mapping[str, _Service] = {
    "AgentService": _Service(
        "agents",
        "Agent",
        _ByHand(
            "agents",
            "AgentLookup",
            {"get": ("agent_id", "Agent", "Returns an agent by id or name.")},
        ),
    ),
    "GroupService": _Service("groups", "Group"),
    "ModelService": _Service("models", "Model"),
    "PromptService": _Service("prompts", "Prompt"),
    "BlockService": _Service("blocks", "Block"),
    "FileService": _Service(
        "files",
        "File",
        _ByHand(
            "uploads",
            "FileUploads",
            {"upload": ("folder_id, content, …", "File", "Uploads a file into a folder.")},
        ),
    ),
    "MessageService": _Service("messages", "Message"),
    "MessageIndexService": _Service("message_index", "Index"),
    "ArchiveService": _Service("archives", "Archive"),
    "PassageService": _Service(
        "passages",
        "Passage",
        _ByHand(
            "uploads",
            "PassageUploads",
            {
                "upload": (
                    *("passages, …", "UploadPassagesResponse"),
                    "Stores many passages by one call.",
                )
            },
        ),
    ),
    "PassageIndexService": _Service("passage_index", "Index"),
    "ToolService": _Service("tools", "Tool"),
    "McpService": _Service("mcp", "Mcp(?:Server)?"),
    "RunService": _Service("runs", "Run"),
    "ScheduleService": _Service("schedules", "Schedule"),
    "WebhookService": _Service("webhooks", "Webhook"),
    "AdminService": _Service("admin", "Admin"),
}

# The client has methods of its own for these. Streams of requests are written by hand.
_LEFT_OUT = frozenset({"SendMessage", "StreamRun", "RespondToApproval", "GetAgent"})

# Of a response with several fields, the one that is returned. A response with one field gives
# that field; one that gets a second field later is added here, so that the method stays as it is.
_RETURNED: Mapping[str, str] = {
    "CreateAgentResponse": "agent",
    "UpdateBlockResponse": "block",
    "ListFilesResponse": "files",
}
# Responses with several fields that are returned as they are.
_WHOLE = frozenset(
    {
        "BeginMcpSignInResponse",
        "CompactConversationResponse",
        "CreateApiKeyResponse",
        "CreateOrganizationKeyResponse",
        "CreateWebhookResponse",
        "EditBlockResponse",
        "ExpandSummaryResponse",
        "ExplainRunResponse",
        "GetContextWindowResponse",
        "GetImageResponse",
        "GetUsageResponse",
        "GetUsageSeriesResponse",
        "GrepFilesResponse",
        "IngestFilesResponse",
        "InsertPassageResponse",
        "ListModelsResponse",
        "ListPromptsResponse",
        "OpenFilesResponse",
        "PreviewCompactionResponse",
        "ProbeModelResponse",
        "ReadFileResponse",
        "RefreshMcpServerResponse",
        "ReindexArchiveResponse",
        "RenderMemoryResponse",
        "RevertBlockResponse",
        "RevokeApiKeyResponse",
        "RunToolResponse",
        "SearchFilesResponse",
        "SearchMessagesResponse",
        "SearchPassagesResponse",
        "WhoAmIResponse",
    }
)

# Requests with one message that describes the new object: its fields become arguments.
_FLATTENED: Mapping[str, str] = {
    "CreateBlock": "block",
    "InsertPassage": "passage",
    "AddMcpServer": "server",
    "UpdateMcpServer": "server",
}
# Fields that only the server sets, in messages that are both given and returned.
_SET_BY_SERVER: Mapping[str, frozenset[str]] = {
    "McpServer": frozenset(
        {
            *("id", "healthy", "error", "tools", "quarantined_tools", "create_time"),
            *("last_contact_time", "update_time", "sign_in"),
        }
    ),
}

# Arguments that may be given by position, where they are not the first id of the request, or the
# query of a search.
_POSITIONAL: Mapping[str, tuple[str, ...]] = {
    "AttachArchive": ("agent_id", "archive_id"),
    "AttachBlock": ("agent_id", "block_id"),
    "AttachFolder": ("agent_id", "folder_id"),
    "CreateBlock": ("label", "value"),
    "CreateFolder": ("name",),
    "DetachArchive": ("agent_id", "archive_id"),
    "DetachBlock": ("agent_id", "block_id"),
    "DetachFolder": ("agent_id", "folder_id"),
    "GetPrompt": ("key",),
    "GrepFiles": ("agent_id", "pattern"),
    "InsertPassage": ("text",),
    "ProbeModel": ("handle",),
    "PutSecret": ("name", "value"),
    "SearchFiles": ("agent_id", "query"),
}
# Requests whose first id narrows a list, is one of several ways to say what is meant, or has a
# default. That of all others is required.
_OPTIONAL_ID = frozenset(
    {
        *("CreateApiKey", "CreateOrganizationKey", "EditBlock", "EraseSubject", "ExpandSummary"),
        *("ExportMessages", "GetBlock", "GetConversation", "GetTool", "LintMemory", "ListApiKeys"),
        *("ListApprovals", "ListArchives", "ListBlocks", "ListFiles", "ListFolders"),
        *("ListMessages", "ListOrganizationKeys", "ListPassages", "ListRuns", "ListSchedules"),
        *("ListTags", "ListWebhookDeliveries", "RevertBlock", "RunTool", "StartRun"),
    }
)
# Arguments with a type of their own: the type, and how the field is made of it.
_SHORT_FORMS = {
    "agent_loop.v1.ModelConfig": ("Model", "model_of({})"),
    "google.protobuf.Timestamp": ("Time", 'time_of({}, "{}")'),
}
_LIST_FORMS = {
    "core_memory.v1.NewBlock": ("Blocks", "blocks_of({})"),
    "common.v1.MessageInput": ("Messages", "messages_of({})"),
}
_SCALARS = {
    FieldDescriptor.CPPTYPE_STRING: ("str", '""'),
    FieldDescriptor.CPPTYPE_BOOL: ("bool", "False"),
    FieldDescriptor.CPPTYPE_INT32: ("int", "0"),
    FieldDescriptor.CPPTYPE_INT64: ("int", "0"),
    FieldDescriptor.CPPTYPE_UINT32: ("int", "0"),
    FieldDescriptor.CPPTYPE_UINT64: ("int", "0"),
    FieldDescriptor.CPPTYPE_FLOAT: ("float", "0.0"),
    FieldDescriptor.CPPTYPE_DOUBLE: ("float", "0.0"),
}


class ContractError(Exception):
    """A contract needs an entry in one of the tables above."""


@cache
def _comments() -> Mapping[str, str]:
    """Returns the comments of the contracts by the full name of what they describe."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "descriptors"
        files = sorted(str(path.relative_to(_PROTOS)) for path in _PROTOS.rglob("*.proto"))
        options = (f"-I{_PROTOS}", f"-I{Path(protoc.__file__).parent / '_proto'}")
        status = protoc.main(
            [
                *("protoc", *options, f"--descriptor_set_out={target}", "--include_source_info"),
                *files,
            ]
        )
        if status != 0:
            sys.exit(status)
        descriptors = FileDescriptorSet.FromString(target.read_bytes())
    comments = {}
    for file in descriptors.file:
        names = dict(_paths(file))
        for location in file.source_code_info.location:
            name = names.get(tuple(location.path))
            if name is not None:
                comments[f"{file.package}.{name}"] = " ".join(location.leading_comments.split())
    return comments


def _paths(file: object) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yields the paths of services, methods, messages and fields in a file, and their names."""
    for number, service in enumerate(getattr(file, "service", ())):
        yield (6, number), service.name
        for place, method in enumerate(service.method):
            yield (6, number, 2, place), f"{service.name}.{method.name}"
    for number, message in enumerate(getattr(file, "message_type", ())):
        yield (4, number), message.name
        for place, one in enumerate(message.field):
            yield (4, number, 2, place), f"{message.name}.{one.name}"


@cache
def _messages_with_ids() -> Mapping[str, Descriptor]:
    """Returns the messages of the public contracts that have an id, by their name in snake case.

    Of two messages with one name, that of a file with a service counts.
    """
    own = [service.file for service in public_services()]
    common = [dependency for file in own for dependency in file.dependencies]
    return {
        _snake(message.name): message
        for file in (*common, *own)
        for message in file.message_types_by_name.values()
        if "id" in message.fields_by_name
    }


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@dataclass
class _Imports:
    """The imports of a generated module."""

    modules: set[tuple[str, str]] = field(default_factory=set)
    names: dict[str, set[str]] = field(default_factory=dict)

    def add(self, module: str, *names: str) -> None:
        """Imports names of a module."""
        self.names.setdefault(module, set()).update(names)

    def type_of(self, descriptor: Descriptor | EnumDescriptor) -> str:
        """Imports the module of a generated message, and returns the name of the message there."""
        path = descriptor.file.name.removesuffix(".proto").replace("/", ".") + "_pb2"
        package, _, module = path.rpartition(".")
        self.modules.add((package, module))
        return f"{module}.{descriptor.name}"

    def lines(self) -> Iterator[str]:
        """Yields the statements."""
        for package, module in sorted(self.modules):
            yield f"from {package} import {module}"
        for module, names in sorted(self.names.items()):
            yield f"from {module} import {', '.join(sorted(names))}"


@dataclass(frozen=True)
class _Argument:
    """An argument of a method.

    Attributes:
        name: Its name.
        type: Its type.
        default: Its default value; empty if it is required.
        comment: Its description.
        fields: Expressions by field of the request, or of the flattened message.
        flattened: It belongs to the flattened message.
    """

    name: str
    type: str
    default: str
    comment: str
    fields: Mapping[str, str]
    flattened: bool = False

    def text(self) -> str:
        """Returns the argument as the head of a method has it."""
        return f"{self.name}: {self.type}" + (f" = {self.default}" if self.default else "")


class _Method:
    """A method of the client.

    Args:
        rpc: The call.
        name: Its name.
        imports: The imports of its module.
    """

    def __init__(self, rpc: MethodDescriptor, name: str, imports: _Imports) -> None:
        self.rpc = rpc
        self.name = name
        self._imports = imports
        self.comment = _comments()[rpc.full_name]
        self.is_list = "next_page_token" in rpc.output_type.fields_by_name
        self._returned = self._returned_field()
        self._arguments = list(self._all_arguments())

    @property
    def iterates(self) -> bool:
        """Whether it yields several values."""
        return self.is_list or self.rpc.server_streaming

    def returned_type(self) -> str:
        """Returns the type of what it returns, or of what it yields."""
        output = self.rpc.output_type
        if not output.fields:
            return "None"
        if self._returned is None:
            return self._imports.type_of(output)
        if _is_map(self._returned):
            return self._mapping(self._returned)
        kind = self._scalar_type(self._returned)
        if self._returned.is_repeated and not self.iterates:
            self._imports.add("collections.abc", "Sequence")
            return f"Sequence[{kind}]"
        return kind

    def signature(self) -> str:
        """Returns the arguments that may be given by position, for the table of a guide."""
        names = [argument.name for argument in self._positional()]
        more = len(self._arguments) > len(names)
        return ", ".join([*names, *(["…"] if more else [])])

    def code(self) -> Iterator[str]:
        """Yields the lines of the method."""
        returned = self.returned_type()
        if self.iterates:
            self._imports.add("collections.abc", "AsyncGenerator")
            returned = f"AsyncGenerator[{returned}, None]"
        positional = self._positional()
        keywords = [argument for argument in self._arguments if argument not in positional]
        head = ["self", *(argument.text() for argument in positional)]
        if keywords:
            head += ["*", *(argument.text() for argument in keywords)]
        yield f"    async def {self.name}({', '.join(head)}) -> {returned}:"
        yield from self._docstring()
        yield f"        request = {self._request()}"
        for one in self._assigned():
            yield f"        if {one.name} is not None:"
            yield f"            request.{one.name} = {self._form(one)[2]}"
        yield from self._body()

    def _docstring(self) -> Iterator[str]:
        yield from _docstring(self.comment, 8)
        if self._arguments:
            yield ""
            yield "        Args:"
            for argument in self._arguments:
                yield from _wrapped(f"{argument.name}: {argument.comment}", 12, 16)
        yield '        """'

    def _body(self) -> Iterator[str]:
        call = f"self.{self.rpc.name}(request)"
        part = f".{self._returned.name}" if self._returned is not None else ""
        if self.is_list:
            self._imports.add("strata.client.calls.pages", "pages")
            yield f"        async for page in pages(self.{self.rpc.name}, request):"
            yield f"            for item in page{part}:"
            yield "                yield item"
        elif self.rpc.server_streaming:
            repeated = self._returned is not None and self._returned.is_repeated
            yield f"        call = {call}"
            yield "        try:"
            yield "            async for response in call:"
            if repeated:
                yield f"                for item in response{part}:"
                yield "                    yield item"
            else:
                yield f"                yield response{part}"
            yield "        finally:"
            yield "            call.cancel()"
        elif not self.rpc.output_type.fields:
            yield f"        await {call}"
        elif part:
            yield f"        response = await {call}"
            yield f"        return response{part}"
        else:
            yield f"        return await {call}"

    def _request(self) -> str:
        kind = self._imports.type_of(self.rpc.input_type)
        flattened = _FLATTENED.get(self.rpc.name)
        assigned = {one.name for one in self._assigned()}
        own = [
            f"{name}={expression}"
            for argument in self._arguments
            if not argument.flattened
            for name, expression in argument.fields.items()
            if name not in assigned
        ]
        if flattened is not None:
            message = _message(self.rpc.input_type.fields_by_name[flattened])
            inner = ", ".join(
                f"{name}={expression}"
                for argument in self._arguments
                if argument.flattened
                for name, expression in argument.fields.items()
            )
            own.append(f"{flattened}={self._imports.type_of(message)}({inner})")
        return f"{kind}({', '.join(own)})"

    def _assigned(self) -> list[FieldDescriptor]:
        """Returns the fields that a constructor takes no None for: values of which one is set."""
        fields = self.rpc.input_type.fields
        return [one for one in fields if _is_in_oneof(one) and one.message_type is None]

    def _returned_field(self) -> FieldDescriptor | None:
        output = self.rpc.output_type
        fields = [one for one in output.fields if one.name != "next_page_token"]
        if output.name in _WHOLE:
            return None
        if output.name in _RETURNED:
            return output.fields_by_name[_RETURNED[output.name]]
        if len(fields) > 1:
            raise ContractError(
                f"{output.name} has several fields: say in _RETURNED or _WHOLE what is returned."
            )
        return fields[0] if fields else None

    def _positional(self) -> list[_Argument]:
        names = _POSITIONAL.get(self.rpc.name, ())
        if not names and self.rpc.name.startswith("Search"):
            names = ("query",)
        if not names and self._arguments:
            first = self._arguments[0]
            is_subject = not first.default or self.rpc.name.startswith("Get")
            names = (first.name,) if first.name.endswith("_id") and is_subject else ()
        by_name = {argument.name: argument for argument in self._arguments}
        return [by_name[name] for name in names]

    def _all_arguments(self) -> Iterator[_Argument]:
        flattened = _FLATTENED.get(self.rpc.name)
        arguments = []
        for one in self.rpc.input_type.fields:
            if one.name == "page_token":
                continue
            if one.name == flattened:
                arguments += [
                    self._argument(nested, flattened=True) for nested in _client_fields(one)
                ]
            elif not self._is_switch(one):
                arguments.append(self._argument(one))
        # The key comes last: most programs do not set it.
        yield from sorted(arguments, key=lambda argument: argument.name == "request_id")

    def _is_switch(self, one: FieldDescriptor) -> bool:
        """Whether a field only marks that a list is set: ``set_tags`` of ``tags``."""
        names = self.rpc.input_type.fields_by_name
        return one.name.startswith("set_") and one.name.removeprefix("set_") in names

    def _argument(self, one: FieldDescriptor, *, flattened: bool = False) -> _Argument:
        comment = _comments()[one.full_name]
        kind, default, expression = self._form(one)
        fields = {one.name: expression}
        if f"set_{one.name}" in self.rpc.input_type.fields_by_name and not flattened:
            if not _is_map(one):
                kind, default = f"{kind} | None", "None"
                expression = expression.replace(one.name, f"{one.name} or ()", 1)
            fields = {one.name: expression, f"set_{one.name}": f"{one.name} is not None"}
        if _is_in_oneof(one) and default != "None":
            kind, default = f"{kind} | None", "None"
        if self._is_required(one):
            default = ""
        return _Argument(one.name, kind, default, comment, fields, flattened)

    def _is_required(self, one: FieldDescriptor) -> bool:
        rpc = self.rpc
        if rpc.name in _POSITIONAL:
            return one.name in _POSITIONAL[rpc.name]
        if rpc.name.startswith("Search"):
            return one.name == "query"
        names = [name for name in rpc.input_type.fields_by_name if name != "request_id"]
        return one.name == names[0] and one.name.endswith("_id") and rpc.name not in _OPTIONAL_ID

    def _form(self, one: FieldDescriptor) -> tuple[str, str, str]:
        """Returns type, default and conversion of an argument."""
        name = one.name
        if _is_map(one):
            return f"{self._mapping(one)} | None", "None", name
        if one.is_repeated:
            return self._list_form(one)
        if one.enum_type is not None:
            kind = self._enum(one.enum_type)
            self._arguments_module("enum_of")
            enum = self._imports.type_of(one.enum_type)
            return f"{kind} | None", "None", f'enum_of({enum}, {name}, "{name}")'
        if one.message_type is not None:
            return self._message_form(one)
        if name == "request_id":
            self._imports.add("strata.client.services", "new_request_id")
            return "str", '""', "request_id or new_request_id()"
        if name == "agent_id":
            self._imports.add("strata.client.calls.agents", "AgentReference", "agent_id_of")
            return "AgentReference", '""', "await agent_id_of(self.channel, agent_id)"
        if (message := self._identified(name, "_id")) is not None:
            self._arguments_module("id_of")
            return f"str | {message}", '""', f"id_of({name})"
        kind, default = _SCALARS[one.cpp_type]
        return (f"{kind} | None", "None", name) if one.has_presence else (kind, default, name)

    def _message_form(self, one: FieldDescriptor) -> tuple[str, str, str]:
        name, message = one.name, _message(one)
        key = message.full_name.removeprefix("strata.api.")
        if key in _SHORT_FORMS:
            kind, expression = _SHORT_FORMS[key]
            self._arguments_module(kind, expression.partition("(")[0])
            return f"{kind} | None", "None", expression.format(name, name)
        kind = self._imports.type_of(message)
        if len(message.fields) == 1 and message.fields[0].cpp_type == one.CPPTYPE_STRING:
            self._arguments_module("message_of")
            value = "str"
            if message.fields[0].is_repeated:
                self._imports.add("collections.abc", "Iterable")
                value = "Iterable[str]"
            conversion = f'message_of({kind}, "{message.fields[0].name}", {name})'
            return f"{kind} | {value} | None", "None", conversion
        return f"{kind} | None", "None", name

    def _list_form(self, one: FieldDescriptor) -> tuple[str, str, str]:
        name = one.name
        key = one.message_type.full_name.removeprefix("strata.api.") if one.message_type else ""
        if key in _LIST_FORMS:
            kind, expression = _LIST_FORMS[key]
            self._arguments_module(kind, expression.partition("(")[0])
            return kind, "()", expression.format(name)
        self._imports.add("collections.abc", "Iterable")
        if one.enum_type is not None:
            self._arguments_module("enums_of")
            enum = self._imports.type_of(one.enum_type)
            kind = f"Iterable[{self._enum(one.enum_type)}]"
            return kind, "()", f'enums_of({enum}, {name}, "{name}")'
        if name == "agent_ids":
            self._imports.add("strata.client.calls.agents", "AgentReference", "agent_ids_of")
            conversion = 'await agent_ids_of(self.channel, agent_ids, "agent_ids")'
            return "Iterable[AgentReference]", "()", conversion
        if (message := self._identified(name, "_ids")) is not None:
            self._arguments_module("ids_of")
            return f"Iterable[str | {message}]", "()", f'ids_of({name}, "{name}")'
        if one.cpp_type == one.CPPTYPE_STRING:
            self._arguments_module("texts_of")
            return "Iterable[str]", "()", f'texts_of({name}, "{name}")'
        return f"Iterable[{self._scalar_type(one)}]", "()", name

    def _arguments_module(self, *names: str) -> None:
        self._imports.add("strata.client.calls.arguments", *names)

    def _identified(self, name: str, ending: str) -> str | None:
        """Returns the message that an id names: the block of a ``shared_block_id``."""
        if not name.endswith(ending):
            return None
        words = name.removesuffix(ending).split("_")
        for start in range(len(words)):
            message = _messages_with_ids().get("_".join(words[start:]))
            if message is not None:
                return self._imports.type_of(message)
        return None

    def _enum(self, enum: EnumDescriptor) -> str:
        alias = f"{enum.name}Name"
        self._imports.add("strata.client.generated.enums", alias)
        return f"{alias} | {self._imports.type_of(enum)}.ValueType"

    def _mapping(self, one: FieldDescriptor) -> str:
        self._imports.add("collections.abc", "Mapping")
        key, value = _message(one).fields
        return f"Mapping[{self._scalar_type(key)}, {self._scalar_type(value)}]"

    def _scalar_type(self, one: FieldDescriptor) -> str:
        if one.message_type is not None:
            return self._imports.type_of(one.message_type)
        if one.enum_type is not None:
            return f"{self._imports.type_of(one.enum_type)}.ValueType"
        return "bytes" if one.type == one.TYPE_BYTES else _SCALARS[one.cpp_type][0]


def _is_map(one: FieldDescriptor) -> bool:
    return one.message_type is not None and one.message_type.GetOptions().map_entry


def _message(one: FieldDescriptor) -> Descriptor:
    """Returns the type of a field that holds messages."""
    assert one.message_type is not None
    return one.message_type


def _client_fields(one: FieldDescriptor) -> Iterator[FieldDescriptor]:
    """Yields the fields of a flattened message that a client gives."""
    message = _message(one)
    left_out = _SET_BY_SERVER.get(message.name, frozenset())
    yield from (nested for nested in message.fields if nested.name not in left_out)


def _is_in_oneof(one: FieldDescriptor) -> bool:
    """Whether a field is one of several; a field that is optional for itself is not."""
    return one.containing_oneof is not None and len(one.containing_oneof.fields) > 1


def _method_name(rpc: MethodDescriptor, noun: str) -> str:
    match = re.fullmatch(rf"([A-Z][a-z]+){noun}(?:s?|(?=[A-Z].*))([A-Z].*)?", rpc.name)
    name = rpc.name if match is None else f"{match[1]}{match[2] or ''}"
    return _snake(name)


def _wrapped(text: str, indent: int, further: int | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent if further is None else further),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _docstring(comment: str, indent: int) -> Iterator[str]:
    """Yields the lines of a docstring without its end."""
    summary = _first_sentence(comment)
    rest = comment[len(summary) :].lstrip()
    yield from _wrapped(f'"""{summary}', indent)
    if rest:
        yield ""
        yield from _wrapped(rest, indent)


def _methods(service: ServiceDescriptor, imports: _Imports) -> list[_Method]:
    noun = SERVICES[service.name].noun
    methods = [
        _Method(rpc, _method_name(rpc, noun), imports)
        for rpc in service.methods
        if rpc.name not in _LEFT_OUT and not rpc.client_streaming
    ]
    names = [method.name for method in methods]
    if len(set(names)) != len(names):
        raise ContractError(f"{service.name}: two methods have the same name: {sorted(names)}")
    return methods


def _class_name(service: ServiceDescriptor) -> str:
    return f"{service.name.removesuffix('Service')}Calls"


def module_of(service: ServiceDescriptor) -> str:
    """Returns the code of the module with the methods of a service."""
    imports = _Imports()
    imports.add("grpc", "aio")
    package, _, module = service.file.name.removesuffix(".proto").replace("/", ".").rpartition(".")
    stub = f"{module}_pb2_grpc.{service.name}Stub"
    imports.modules.add((package, f"{module}_pb2_grpc"))
    imports.add("strata.client.calls.on_thread", "LoopThread", "OnThread", "returning")
    name = _class_name(service)
    by_hand = SERVICES[service.name].by_hand
    if by_hand is not None:
        imports.add(f"strata.client.calls.{by_hand.module}", by_hand.name)
    methods = _methods(service, imports)
    docstring = [*_docstring(_comments()[service.full_name], 4), '    """', ""]
    code = [
        *(f"class {name}({by_hand.name if by_hand else stub}):", *docstring),
        *(
            "    def __init__(self, channel: aio.Channel) -> None:",
            "        super().__init__(channel)",
        ),
        *("        self.channel = channel", ""),
    ]
    for method in methods:
        code += [*method.code(), ""]
    if any(method.iterates for method in methods):
        imports.add("strata.client.calls.on_thread", "iterating")
    code += [
        *("", f"class Sync{name}(OnThread[{name}], {stub}):", *docstring),
        f"    def __init__(self, calls: {name}, thread: LoopThread) -> None:",
        "        OnThread.__init__(self, calls, thread)",
        *(f"        {stub}.__init__(self, calls.channel)", ""),
    ]
    for method in methods:
        wrapper = "iterating" if method.iterates else "returning"
        code.append(f"    {method.name} = {wrapper}({name}.{method.name})")
    rows = by_hand.rows if by_hand else ()
    code += [f"    {method} = returning({name}.{method})" for method in rows]
    return "\n".join(
        [
            f'"""Calls of `{service.name}`. Generated by clients/generate_python.py."""',
            *("", "from __future__ import annotations", "", *imports.lines(), "", "", *code, ""),
        ]
    )


def enums_module() -> str:
    """Returns the code of the module with the names of enumerations' values."""
    enums: dict[str, Sequence[str]] = {}
    for service in public_services():
        for rpc in service.methods:
            for one in _fields(rpc):
                if one.enum_type is not None:
                    wrapper = type("Enum", (), {"DESCRIPTOR": one.enum_type})
                    enums[one.enum_type.name] = list(enum_names(wrapper))
    lines = [
        '"""Names of the values of enumerations. Generated by clients/generate_python.py."""',
        *("", "from typing import Literal, TypeAlias", ""),
    ]
    for name, values in sorted(enums.items()):
        listed = ", ".join(f'"{value}"' for value in values)
        lines.append(f"{name}Name: TypeAlias = Literal[{listed}]")
    return "\n".join([*lines, ""])


def _fields(rpc: MethodDescriptor) -> Iterator[FieldDescriptor]:
    if rpc.name in _LEFT_OUT or rpc.client_streaming:
        return
    for one in rpc.input_type.fields:
        if one.name == _FLATTENED.get(rpc.name):
            yield from _client_fields(one)
        else:
            yield one


def clients_module() -> str:
    """Returns the code of the module with the services of a client."""
    attributes = {SERVICES[service.name].attribute: service for service in public_services()}
    lines = [
        '"""The services of a client. Generated by clients/generate_python.py."""',
        *("", "from __future__ import annotations", "", "from functools import cached_property"),
        *("from typing import TypeVar", "", "from strata.client.calls.on_thread import OnThread"),
        *(
            f"from strata.client.generated.{attribute} import {name}, Sync{name}"
            for attribute, name in sorted((key, _class_name(of)) for key, of in attributes.items())
        ),
        *("from strata.client.services import Services", "", ""),
        "class ServiceCalls(Services):",
        '    """The services of a gateway, with methods for their calls."""',
        *_properties(attributes, "", "(self.channel)"),
        *("", "", 'ServiceCallsT = TypeVar("ServiceCallsT", bound=ServiceCalls)', "", ""),
        "class SyncServiceCalls(OnThread[ServiceCallsT], Services):",
        '    """The services of a gateway, with methods for their calls, without ``await``."""',
        *_properties(attributes, "Sync", "(self._inner.{}, self._thread)"),
    ]
    return "\n".join([*lines, ""])


def _properties(
    attributes: Mapping[str, ServiceDescriptor], prefix: str, arguments: str
) -> Iterator[str]:
    for attribute, service in attributes.items():
        name = f"{prefix}{_class_name(service)}"
        yield ""
        yield "    @cached_property"
        yield f"    def {attribute}(self) -> {name}:"
        yield from _wrapped(f'"""{_first_sentence(_comments()[service.full_name])}', 8)
        yield '        """'
        yield f"        return {name}{arguments.format(attribute)}"


def _first_sentence(comment: str) -> str:
    return re.split(r"(?<=\.)\s", comment, maxsplit=1)[0]


def _summary(comment: str) -> str:
    """Returns the first sentence, and the second one if the first is only a warning."""
    first = _first_sentence(comment)
    if not first.startswith("Not implemented"):
        return first
    return f"**{first}** {_first_sentence(comment[len(first) :].lstrip())}"


_INTRODUCTION = (
    "Generated from the [contracts](../../protos) by `clients/generate_python.py`; the",
    "[guide](python.md#calls) says how calls work. The arguments shown may be given by position;",
    "`…` stands for keyword arguments, which `help` and editors show with their descriptions:",
    "`help(strata.client.generated.agents.AgentCalls.create)`.",
)


def page() -> str:
    """Returns the page that lists all calls."""
    lines = [
        "# Calls of the Python client",
        "",
        *_INTRODUCTION,
    ]
    for service in public_services():
        attribute = SERVICES[service.name].attribute
        lines += ["", f"## `client.{attribute}`", "", "| call | result | what it does |"]
        lines.append("|---|---|---|")
        for method in _methods(service, _Imports()):
            result = re.sub(r"\b\w+_pb2\.", "", method.returned_type())
            result = f"iterates over `{result}`" if method.iterates else f"`{result}`"
            call = f"`{method.name}({method.signature()})`"
            lines.append(f"| {call} | {result} | {_summary(method.comment)} |")
        if (by_hand := SERVICES[service.name].by_hand) is not None:
            lines += [
                f"| `{name}({arguments})` | `{result}` | {summary} |"
                for name, (arguments, result, summary) in by_hand.rows.items()
            ]
    return "\n".join([*lines, ""])


def outputs() -> Mapping[Path, str]:
    """Returns all generated files by their path in the repository; the code is not formatted."""
    package = _PACKAGE.relative_to(_ROOT)
    modules = {
        package
        / "__init__.py": '"""Methods for all calls. Generated by clients/generate_python.py."""\n',
        package / "enums.py": enums_module(),
        package / "clients.py": clients_module(),
    }
    for service in public_services():
        modules[package / f"{SERVICES[service.name].attribute}.py"] = module_of(service)
    return {**modules, _PAGE.relative_to(_ROOT): page()}


def write(target: Path) -> None:
    """Writes the files below a folder."""
    files = outputs()
    for path, text in files.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(text, "utf-8")
    code = [str(target / path) for path in files if path.suffix == ".py"]
    ruff = (sys.executable, "-m", "ruff")
    config = ("--config", str(_ROOT / "pyproject.toml"), "--quiet")
    for command in (("check", "--select", "I,F401", "--fix"), ("format",)):
        subprocess.run([*ruff, *command, *config, *code], check=True)  # noqa: S603


def main(arguments: Iterable[str]) -> None:
    """Writes the files into the repository, or below another folder."""
    match list(arguments):
        case []:
            write(_ROOT)
        case [folder]:
            write(Path(folder))
        case _:
            sys.exit("usage: generate_python.py [FOLDER]")


if __name__ == "__main__":
    main(sys.argv[1:])
