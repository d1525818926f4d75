"""Connections of ``requests``, which libraries bring along, that check certificates as berth's own connections do.

It is a module of its own since ``requests`` takes 0.1 s to import: only who exports spans or asks Prometheus does.
"""

from __future__ import annotations

from typing import Any

import requests.adapters
from urllib3.util.ssl_ import create_urllib3_context

from berth.tls import without_strict_checks


class Adapter(requests.adapters.HTTPAdapter):
    """Takes the authorities that :mod:`berth.tls` takes."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """The authorities themselves are added for each connection, by ``verify``."""
        super().init_poolmanager(*args, ssl_context=without_strict_checks(create_urllib3_context()), **kwargs)
