"""Passwords, tokens, credentials files, nkeys and TLS as options of nats-py's ``connect``."""

from __future__ import annotations

import importlib.util
import ssl
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import nats.errors

from berth.bus.settings import BusSettings, NatsCredentials, TlsSettings
from berth.tls import client_context

REFUSED: Final = "authorization violation"
_WHO: Final = (
    "it wants a user that it knows: BERTH_NATS_USER with BERTH_NATS_PASSWORD_FILE, or a token or credentials file"
)
UNKNOWN_AUTHORITY: Final = "name the authority of its certificate in BERTH_NATS_CA_FILE"


def refusal(who: NatsCredentials) -> str:
    """The refused credentials, and the remedy."""
    if file := who.credentials_file or who.nkey_seed_file:
        return f"it refuses the credentials of {str(file)!r}: they are another server's, or have expired"
    if who.user:
        return f"it refuses user {who.user!r}: the password is wrong, or it knows no such user"
    if who.token:
        return "it refuses the token: it is wrong, or the server takes users only"
    return f"it refuses a client without credentials: {_WHO}"


def wants_tls(settings: BusSettings) -> bool:
    """Whether a connection without TLS is refused."""
    return settings.tls is not None or any(server.startswith("tls://") for server in settings.servers)


def connect_options(settings: BusSettings) -> dict[str, Any]:
    """nats-py's options for TLS and credentials.

    Raises:
        ValueError: a missing file, or a missing package.
        OSError: a file has the wrong content (ssl.SSLError is one).
    """
    who, tls = settings.credentials, settings.tls or TlsSettings()
    _check_files(who, tls)
    context = client_context(tls.authority_file)
    if tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    return {
        "tls": context,  # also for a server that requires TLS itself: nats-py's own context has strict checks
        "tls_hostname": tls.host_name,
        "user": who.user,
        "password": who.password,
        "token": who.token,
        "user_credentials": str(who.credentials_file) if who.credentials_file else None,
        "nkeys_seed": str(who.nkey_seed_file) if who.nkey_seed_file else None,
        **(_only_over_tls(settings, context) if wants_tls(settings) else {}),
    }


def _only_over_tls(settings: BusSettings, context: ssl.SSLContext) -> dict[str, Callable[[], str]]:
    """Options with credentials as functions that raise before the login unless a handshake has completed."""
    # nats-py uses TLS only when the server's INFO requires it, so an attacker in between could remove that and receive
    # the password. It calls these functions before it sends the login, but the token's after it has signed a nonce.
    is_encrypted = False

    class ObservedHandshake(ssl.SSLObject):
        def do_handshake(self) -> None:
            nonlocal is_encrypted
            super().do_handshake()
            is_encrypted = True

    context.sslobject_class = ObservedHandshake

    def over_tls(secret: str) -> Callable[[], str]:
        def reveal() -> str:
            if not is_encrypted:
                raise nats.errors.SecureConnRequiredError
            return secret

        return reveal

    who = settings.credentials
    user, password = who.user, who.password
    if not any((user, who.token, who.credentials_file, who.nkey_seed_file)):
        user, password = _in_addresses(settings.servers)
    if user is not None and password is not None:
        return {"user": over_tls(user), "password": over_tls(password)}
    return {"token": over_tls(who.token or user or "")}


def _in_addresses(servers: tuple[str, ...]) -> tuple[str | None, str | None]:
    # User and password, or a token alone, in the first address with credentials.
    found = (urlsplit(server) for server in servers)
    return next(((each.username, each.password) for each in found if each.username is not None), (None, None))


def _check_files(who: NatsCredentials, tls: TlsSettings) -> None:
    # Before connecting, because a retry cannot succeed without these files.
    for path in (who.credentials_file, who.nkey_seed_file, tls.authority_file, tls.certificate_file, tls.key_file):
        if path is not None and not path.is_file():
            raise ValueError(f"reading {str(path)!r}: there is no such file")
    if (who.credentials_file or who.nkey_seed_file) and importlib.util.find_spec("nkeys") is None:
        raise ValueError("signing with an nkey: the package nkeys is not installed: `pip install nkeys` brings it")
