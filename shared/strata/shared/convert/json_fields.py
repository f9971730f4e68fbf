"""A check of JSON that becomes a protobuf message, which `json_format` does not make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.shared.json_text import JsonTextError

if TYPE_CHECKING:
    from google._upb._message import Descriptor as UpbDescriptor
    from google.protobuf.descriptor import Descriptor


def check_field_names(value: object, kind: Descriptor | UpbDescriptor) -> None:
    """Raises if an object has a field twice: by its JSON name and by its name in the contract.

    `json_format` accepts either, and both: one value would silently replace the other.

    Args:
        value: The JSON value of a message.
        kind: The descriptor of the message.

    Raises:
        JsonTextError: With the field.
    """
    # The types of protobuf itself have JSON forms of their own, some with any names.
    if not isinstance(value, dict) or kind.file.package == "google.protobuf":
        return
    for name, item in value.items():
        field = kind.fields_by_name.get(name) or kind.fields_by_camelcase_name.get(name)
        if field is None:
            continue  # Unknown, or not text; `json_format` decides.
        if name != field.json_name and field.json_name in value:
            raise JsonTextError(
                f"the field {field.json_name} is repeated, as {field.json_name!r} and {name!r}"
            )
        inner = field.message_type
        # The keys of a map are not fields, and no request has a map of messages.
        if inner is None or inner.GetOptions().map_entry:
            continue
        for part in item if isinstance(item, list) else [item]:
            check_field_names(part, inner)
