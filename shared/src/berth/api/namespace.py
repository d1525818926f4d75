"""Namespace, trimmed to its labels."""

from __future__ import annotations

from berth.api.meta import ObjectMeta, Trimmed


class Namespace(Trimmed, frozen=True, kw_only=True):
    """A namespace; namespace selectors match its labels."""

    metadata: ObjectMeta
