"""How identities, times and amounts are shown to people: short, and the same everywhere."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import Final

CONFIRMED_WITHIN: Final = timedelta(seconds=35)
"""How long ago the quietest kind may have been confirmed where all is well: what changes is told at once, and where
nothing does, every watch says so once in 20 to 30 s; then that takes its way."""
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_IDENTITY: Final = re.compile(f"(?P<host>.+)_{_UUID}(?:_(?P<name>.+))?")
_UID_SHOWN: Final = 4
_MINUTE: Final = 60
_HOUR: Final = 3600
_TEN: Final = 10
_AMOUNTS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_THOUSAND: Final = 1000


def short_identity(identity: str) -> str:
    """Who a process is, without what only makes it unique: ``scorer-2``, or the host that it runs on."""
    found = _IDENTITY.fullmatch(identity)
    return (found["name"] or found["host"]) if found else identity


def short_attempt(attempt: str) -> str:
    """An attempt with its uid cut: ``0f8f...1.1``."""
    uid, *rest = attempt.rsplit(".", 2)
    return f"{uid[:_UID_SHOWN]}...{'.'.join(rest)}" if len(uid) > 2 * _UID_SHOWN else attempt


def duration(seconds: float) -> str:
    """A length of time with the unit that suits it: ``3.1 ms``, ``4.2 s``, ``2 min 5 s``, ``1 h 3 min``."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"


def ago(then: datetime, now: datetime) -> str:
    """How long ago something was; what clocks disagree about is now."""
    return f"{duration(max(0.0, (now - then).total_seconds()))} ago"


def is_current(age: float) -> bool:
    """Whether a view that was last confirmed so many seconds ago may well be the newest state."""
    return age <= CONFIRMED_WITHIN.total_seconds()


def clock(at: datetime) -> str:
    """The time of day where the reader is, to the millisecond."""
    return at.astimezone().strftime("%H:%M:%S.%f")[:-3]


def per_second(amount: float | None) -> str:
    """Bytes per second: ``12.3 MB/s``; nothing for what is not known."""
    return "" if amount is None else f"{_scaled(amount)}/s"


def amount_of_bytes(amount: float) -> str:
    """Bytes: ``1.4 GB``."""
    return _scaled(amount)


def _scaled(amount: float) -> str:
    step = min(len(_AMOUNTS) - 1, int(math.log(amount, _THOUSAND))) if amount >= 1 else 0
    value = amount / _THOUSAND**step
    return f"{value:.1f} {_AMOUNTS[step]}" if step and value < _TEN else f"{value:.0f} {_AMOUNTS[step]}"
