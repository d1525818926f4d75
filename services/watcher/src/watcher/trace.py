"""The trace of a pod: one from its first sight to its Binding, whoever leads meanwhile, so it is told by its uid."""

from __future__ import annotations

import hashlib


def trace_of(uid: str) -> str:
    """The ``traceparent`` under which every attempt of the pod begins."""
    digest = hashlib.blake2b(uid.encode(), digest_size=24).hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-00"
