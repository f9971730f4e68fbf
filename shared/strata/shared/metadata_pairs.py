"""Free key-value pairs that callers set on agents and memory blocks."""

from __future__ import annotations

from collections.abc import Mapping

from strata.protocol.errors import invalid_field

MAX_METADATA_PAIRS = 64
"""Maximum number of pairs of an agent or of a block."""


def merge_metadata(pairs: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Returns the pairs after a change, which sets pairs; an empty value removes its key.

    Raises:
        InvalidArgumentError: The change adds pairs, and there would be too many.
    """
    merged = {key: value for key, value in {**pairs, **changes}.items() if value}
    if MAX_METADATA_PAIRS < len(merged) > len(pairs):
        raise invalid_field(
            "metadata",
            f"would have {len(merged)} pairs together with the stored ones, at most"
            f" {MAX_METADATA_PAIRS} are allowed; remove a pair by setting it to an empty value",
        )
    return merged
