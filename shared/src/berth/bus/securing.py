"""TLS and credentials: whether they are wanted, and that their files are there before anybody connects."""

from __future__ import annotations

import importlib.util
import ssl
from pathlib import Path

from berth.bus.settings import BusSettings, Credentials, TlsSettings


def wants_tls(settings: BusSettings) -> bool:
    """Whether only TLS will do."""
    return settings.tls is not None or any(server.startswith(("tls://", "wss://")) for server in settings.servers)


def tls_context(tls: TlsSettings | None) -> ssl.SSLContext | None:
    """The context of these settings. Raises OSError (ssl.SSLError is one) for files that are not what they say."""
    if tls is None:
        return None
    context = ssl.create_default_context(cafile=tls.authority_file)
    if tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def check_files(settings: BusSettings) -> None:
    """Raise ValueError for a file that is named and cannot be used, so that nobody tries for ever."""
    who, tls = settings.credentials, settings.tls or TlsSettings()
    for path in (who.credentials_file, who.nkey_seed_file, tls.authority_file, tls.certificate_file, tls.key_file):
        _check_readable(path)
    if _signs(who) and importlib.util.find_spec("nkeys") is None:
        raise ValueError("signing with an nkey: the package nkeys is not installed: `pip install nkeys` brings it")


def _check_readable(path: Path | None) -> None:
    if path is not None and not path.is_file():
        raise ValueError(f"reading {str(path)!r}: there is no such file")


def _signs(who: Credentials) -> bool:
    return who.credentials_file is not None or who.nkey_seed_file is not None
