"""Names of metadata services of clouds and clusters: the one list of them.

They are refused wherever a host is given or reached, whatever else is allowed: their answers hold
the credentials of the machine. Their addresses are in `strata.shared.web.addresses`.
"""

from __future__ import annotations

NAMES = frozenset(
    (
        *("metadata", "metadata.google.internal", "metadata.goog", "metadata.azure.internal"),
        *("metadata.azure.com", "metadata.tencentyun.com", "metadata.oraclecloud.com"),
        *("metadata.platformequinix.com", "metadata.packet.net", "metadata.ec2.internal"),
        *("instance-data", "instance-data.ec2.internal", "rancher-metadata"),
        *("kubernetes", "kubernetes.default", "kubernetes.default.svc"),
        "kubernetes.default.svc.cluster.local",
    )
)
_WILDCARD = "*."
# Clouds give every zone of theirs such a name: metadata.us-east-1.compute.internal.
_FIRST_LABELS = frozenset(("metadata", "instance-data"))
_ZONE = ".internal"


def is_metadata_name(host: str) -> bool:
    """Says whether a name is that of a metadata service, or below one.

    Args:
        host: In lower-case ASCII; a final dot makes no difference.
    """
    host = host.removesuffix(".")
    if host.endswith(_ZONE) and not _FIRST_LABELS.isdisjoint(host.split(".")):
        return True
    # A single label is a name of its own, and no suffix: foo.kubernetes is something else.
    return host in NAMES or any(host.endswith(f".{name}") for name in NAMES if "." in name)


def reaches_metadata(pattern: str) -> bool:
    """Says whether a host, or ``*.`` before one, stands for a metadata service."""
    if not pattern.startswith(_WILDCARD):
        return is_metadata_name(pattern)
    suffix = pattern[1:]
    return is_metadata_name(suffix[1:]) or any(name.endswith(suffix) for name in NAMES)
