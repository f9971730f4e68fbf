"""JSON texts on which parsers and encoders fail, by the kind of error."""

from __future__ import annotations


def nested(levels: int) -> str:
    """Returns JSON arguments with `levels` levels of nesting."""
    return '{"a":' + "[" * (levels - 1) + "]" * (levels - 1) + "}"


HOSTILE_ARGUMENTS = {
    "1,100 levels": nested(1_100),
    "700 levels": nested(700),
    "300 levels": nested(300),
    "50,000 levels": nested(50_000),
    "unclosed 1,100 levels": '{"a":' * 1_100,
    "not a number": '{"a": NaN}',
    "infinity": '{"a": -Infinity}',
    "float overflow": '{"a": 1e999}',
    "5,000 digits": '{"a": ' + "9" * 5_000 + "}",
    "escaped half of a surrogate pair": '{"a": "\\ud83d"}',
    "half of a surrogate pair in a name": '{"\\udc00": 1}',
    "escaped NUL": '{"a": "\\u0000"}',
    "NUL": '{"a": "\x00"}',
    "half of a surrogate pair": '{"a": "\ud83d"}',
}
"""Arguments of tool calls, by the kind of error in them."""
