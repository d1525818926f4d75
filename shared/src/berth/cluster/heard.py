"""From the buckets of live data to a Snapshot: what each key of ``bandwidth`` and ``facts`` means to one.

Keys of questions and sources that nobody here declared to read are left out.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

import msgspec

from berth.api.bandwidth import decode_bandwidth
from berth.api.errors import DecodeError
from berth.api.subjects import parse_key
from berth.cluster.live import LiveData
from berth.cluster.livesource import BANDWIDTH, FACTS, LiveSource

_raw: Final = msgspec.json.Decoder(msgspec.Raw)


class HeardData:
    """Live data kept by the entries of its buckets."""

    def __init__(self, live: LiveData, sources: Collection[LiveSource]) -> None:
        self._live = live
        self._wanted = {
            bucket: frozenset(s.name for s in sources if s.bucket == bucket) for bucket in (BANDWIDTH, FACTS)
        }

    @property
    def buckets(self) -> tuple[str, ...]:
        """The buckets that have to be read for the sources."""
        return tuple(bucket for bucket, names in self._wanted.items() if names)

    def apply(self, bucket: str, key: str, data: bytes | None, time: datetime) -> None:
        """Take over one entry, stored at ``time``; ``data`` is ``None`` for a removal.

        Raises:
            DecodeError: the key or the value does not say what it should; what was known before stays.
        """
        self._live.heard_at(time.timestamp())
        source, node = parse_key(key)
        if source not in self._wanted[bucket]:
            return
        if bucket == BANDWIDTH:
            self._live.set_bandwidth(source, node, None if data is None else decode_bandwidth(data))
        else:
            self._live.set_fact(source, node, None if data is None else _fact(key, data))


def _fact(key: str, data: bytes) -> msgspec.Raw:
    """Any JSON.

    Raises:
        DecodeError: it is none.
    """
    try:
        return msgspec.Raw(bytes(_raw.decode(data)))
    except msgspec.MsgspecError as exc:
        raise DecodeError(f"decoding fact {key!r}: {exc}") from exc
