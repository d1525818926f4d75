"""What a plugin declares to read besides the cluster's objects: a question of ``bandwidth``, a source of ``facts``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

BANDWIDTH: Final = "bandwidth"
FACTS: Final = "facts"
LiveBucket = Literal["bandwidth", "facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSource:
    """All keys ``<name>.<node>`` of a bucket."""

    bucket: LiveBucket
    name: str
