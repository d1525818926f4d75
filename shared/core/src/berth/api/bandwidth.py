"""Bandwidth as annotations and arguments have it: bits per second as a quantity (``10M``)."""

from __future__ import annotations

from typing import Final

from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.resources import QuantityError, value
from berth.errors import PermanentError

INGRESS_ANNOTATION: Final = "kubernetes.io/ingress-bandwidth"


# Annotations of a pod: bits per second as a quantity (10M), as read by the CNI plugin that shapes traffic.
EGRESS_ANNOTATION: Final = "kubernetes.io/egress-bandwidth"


# Annotation of a node: bits per second of its link, for network cards that report no speed or a wrong one.
LINK_CAPACITY_ANNOTATION: Final = "berth/link-capacity"


BITS_PER_BYTE: Final = 8


def bytes_per_second(bits: str | float) -> float:
    """A quantity of bits per second (``10M``) in bytes per second.

    Raises:
        QuantityError: not a quantity, or below 0.
    """
    amount = value(bits)
    if amount < 0:
        raise QuantityError(f"want 0 or more, got {bits!r}")
    return amount / BITS_PER_BYTE


def annotated_rate(thing: Pod | Node, annotation: str) -> float | None:
    """Bytes per second of an object's annotation; ``None`` if absent or unreadable."""
    written = (thing.metadata.annotations or {}).get(annotation)
    if written is None:
        return None
    try:
        return bytes_per_second(written)
    except PermanentError:
        return None
