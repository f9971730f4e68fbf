"""Names of the metadata services of clouds and clusters.

These hosts are always refused, because their answers contain the credentials of the machine. Their
addresses are in `strata.shared.web.addresses`.
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
# Names per zone have these labels first: metadata.us-east-1.compute.internal.
_FIRST_LABELS = frozenset(("metadata", "instance-data"))
_ZONE = ".internal"


def is_metadata_name(host: str) -> bool:
    """Returns whether a name belongs to a metadata service, or is a subdomain of one.

    Args:
        host: A name in lower-case ASCII; a final dot is ignored.
    """
    host = host.removesuffix(".")
    if host.endswith(_ZONE) and not _FIRST_LABELS.isdisjoint(host.split(".")):
        return True
    # A single label matches only itself: foo.kubernetes is another host.
    return host in NAMES or any(host.endswith(f".{name}") for name in NAMES if "." in name)


def reaches_metadata(pattern: str) -> bool:
    """Returns whether a host or a wildcard such as ``*.internal`` matches a metadata service."""
    if not pattern.startswith(_WILDCARD):
        return is_metadata_name(pattern)
    suffix = pattern[1:]
    return is_metadata_name(suffix[1:]) or any(name.endswith(suffix) for name in NAMES)
