"""TLS and credentials: whether they are wanted, and that their files are there before anybody connects."""

from __future__ import annotations

import importlib.util
import ssl
from pathlib import Path
from typing import Any

from berth.bus.settings import BusSettings, Credentials, TlsSettings


def wants_tls(settings: BusSettings) -> bool:
    """Whether only TLS will do."""
    return settings.tls is not None or any(server.startswith(("tls://", "wss://")) for server in settings.servers)


def secret_options(settings: BusSettings) -> dict[str, Any]:
    """What nats-py is to be told of TLS and credentials.

    Raises:
        ValueError: a file is named that is not there, or a package is missing that it needs.
        OSError: a file is not what it should be (ssl.SSLError is one).
    """
    who, tls = settings.credentials, settings.tls
    _check_files(who, tls or TlsSettings())
    return {
        "tls": _context(tls) if tls else None,
        "tls_hostname": tls.host_name if tls else None,
        "user": who.user,
        "password": who.password,
        "token": who.token,
        "user_credentials": str(who.credentials_file) if who.credentials_file else None,
        "nkeys_seed": str(who.nkey_seed_file) if who.nkey_seed_file else None,
    }


def _context(tls: TlsSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.authority_file)
    if tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def _check_files(who: Credentials, tls: TlsSettings) -> None:
    """What is wrong with a file is known before anybody connects, so that nobody tries for ever."""
    for path in (who.credentials_file, who.nkey_seed_file, tls.authority_file, tls.certificate_file, tls.key_file):
        _check_readable(path)
    if _signs(who) and importlib.util.find_spec("nkeys") is None:
        raise ValueError("signing with an nkey: the package nkeys is not installed: `pip install nkeys` brings it")


def _check_readable(path: Path | None) -> None:
    if path is not None and not path.is_file():
        raise ValueError(f"reading {str(path)!r}: there is no such file")


def _signs(who: Credentials) -> bool:
    return who.credentials_file is not None or who.nkey_seed_file is not None
