"""Checks a server's certificate as kubectl and other programs in Go do, with any version of Python.

Python 3.13 sets VERIFY_X509_STRICT, which rejects authorities without a keyUsage and certificates without their
authority's key identifier, as EKS, MicroK8s and many older clusters have. Go accepts them. Chain, times, names and the
issuer's authority are checked without it too.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from requests.adapters import HTTPAdapter


def client_context(authority: str | Path | None = None, *, pem: str | None = None) -> ssl.SSLContext:
    """A context that trusts the authorities of the file or of the text; without both, the system's.

    Raises:
        OSError: the file cannot be read, or has no certificate (ssl.SSLError is one).
    """
    if authority is None and not pem:
        return _SystemTrust(ssl.PROTOCOL_TLS_CLIENT)
    return without_strict_checks(ssl.create_default_context(cafile=authority, cadata=pem))


class _SystemTrust(ssl.SSLContext):
    """Trusts the system's authorities; until a handshake reads them, it trusts no one.

    Reading them takes 35 ms of CPU.
    """

    _has_read = False

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        self._read()
        return super().wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        self._read()
        return super().wrap_socket(*args, **options)

    def _read(self) -> None:
        if not self._has_read:
            self.load_default_certs()
            self._has_read = True


def without_strict_checks(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make the context also take authorities without the extensions that strict checks ask for."""
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def requests_adapter(**options: Any) -> HTTPAdapter:
    """An adapter for the ``requests`` sessions of libraries; ``options``: HTTPAdapter's."""
    from requests.adapters import HTTPAdapter  # noqa: PLC0415 - 0.1 s, and most programs ask nobody by it
    from urllib3.util.ssl_ import create_urllib3_context  # noqa: PLC0415

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            """The authorities themselves are added for each connection, by ``verify``."""
            super().init_poolmanager(*args, ssl_context=without_strict_checks(create_urllib3_context()), **kwargs)

    return Adapter(**options)
