"""Access rules: the Host of a request, the token or the proxy's user, and the origin of a POST.

For other machines than this one the page needs a token, which becomes a cookie that scripts cannot read, or a proxy
that authenticates people. Pages of other sites are kept out: names that resolve here (Host), forms (Origin), frames
(Content-Security-Policy).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from berth.exits import UsageError
from berth.settings.readers import Secret

COOKIE: Final = "berth-console"
SESSION: Final = timedelta(hours=12)  # validity of a typed token: a working day
SHORTEST_TOKEN: Final = 16
LONGEST_TOKEN: Final = 1024
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
WILDCARDS: Final = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not listened on

# Headers of every answer: only the page's own files are loaded and run, and caches keep nothing.
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedProxy:
    """A reverse proxy that has authenticated a person and names the user in a header."""

    header: str
    networks: tuple[Network, ...]  # addresses whose header is believed

    def vouches(self, headers: Mapping[str, str], peer: str) -> bool:
        """Whether the request comes from the proxy and names a person."""
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks) and bool(headers.get(self.header, "").strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    host: str  # the address that it listens on
    hosts: frozenset[str]  # accepted Host names
    token: Secret | None = None
    proxy: TrustedProxy | None = None
    _key: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, host: str, *, names: Collection[str], token: Secret | None, proxy: TrustedProxy | None) -> Guard:
        """The rules for a console that listens on ``host`` and also accepts these ``names``.

        Raises:
            UsageError: other machines could reach it without authentication.
        """
        if not is_loopback(host) and token is None and proxy is None:
            raise UsageError(
                f"listening on {host!r}: other machines reach that: say who may look with --token-file, or with "
                "--proxy-header and --proxy-address"
            )
        own = () if host in WILDCARDS else (host,)
        hosts = frozenset(name.lower().strip("[]") for name in (*LOOPBACK_NAMES, *own, *names))
        key = hashlib.sha256(b"berth console\0" + token.reveal().encode()).digest() if token is not None else b""
        return cls(host=host, hosts=hosts, token=token, proxy=proxy, _key=key)

    def knows(self, host_header: str | None) -> bool:
        """Whether the host is known. Foreign names that resolve here are refused."""
        return host_header is not None and name_of_host(host_header) in self.hosts

    def same_origin(self, origin: str | None, host_header: str | None) -> bool:
        """Whether a POST comes from a page of this console: its Origin names the requested Host."""
        if origin is None or host_header is None:
            return False
        return origin.lower() in {f"{scheme}://{host_header.lower()}" for scheme in ("http", "https")}

    def may_look(self, headers: Mapping[str, str], cookie: str | None, peer: str, *, now: float) -> bool:
        if self.token is None and self.proxy is None:
            return True
        if self.proxy is not None and self.proxy.vouches(headers, peer):
            return True
        if self.token is None:
            return False
        given = _bearer_of(headers)
        if given is not None and self.is_token(given):
            return True
        return cookie is not None and self.is_session(cookie, now=now)

    def is_guess(self, headers: Mapping[str, str]) -> bool:
        return self.token is not None and _bearer_of(headers) is not None

    def is_token(self, given: str) -> bool:
        """Whether the text is the token, compared in constant time."""
        return self.token is not None and hmac.compare_digest(_hashed(given), _hashed(self.token.reveal()))

    def new_session(self, *, now: float) -> str:
        """A cookie value, valid for ``SESSION`` or until the token changes; it is not stored."""
        expiry = str(int(now + SESSION.total_seconds()))
        return f"{expiry}.{self._signature(expiry)}"

    def is_session(self, cookie: str, *, now: float) -> bool:
        expiry, _, signature = cookie.partition(".")
        signed = hmac.compare_digest(_hashed(signature), _hashed(self._signature(expiry)))
        return signed and expiry.isascii() and expiry.isdigit() and len(expiry) < LONGEST_TOKEN and int(expiry) > now

    def _signature(self, expiry: str) -> str:
        return hmac.new(self._key, expiry.encode(errors="replace"), hashlib.sha256).hexdigest()


def _bearer_of(headers: Mapping[str, str]) -> str | None:
    kind, _, given = headers.get("Authorization", "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else None


def _hashed(text: str) -> bytes:
    # Equal length for every text, so that a comparison leaks nothing.
    return hashlib.sha256(text.encode(errors="replace")).digest()


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def name_of_host(header: str) -> str:
    """The host without port and brackets; empty if the header is unreadable."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
        return (parts.hostname or "").lower() if parts.netloc == header and "@" not in header else ""
    except ValueError:
        return ""


def read_token(file: Path) -> Secret:
    """The token in a file, without surrounding white space.

    Raises:
        UsageError: the file cannot be read, or its token can be guessed.
    """
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"reading the token of --token-file {str(file)!r}: {reason}") from error
    if not SHORTEST_TOKEN <= len(text) <= LONGEST_TOKEN:
        raise UsageError(
            f"reading the token of --token-file {str(file)!r}: want {SHORTEST_TOKEN} to {LONGEST_TOKEN} characters, "
            f"got {len(text)}: `openssl rand -hex 24` makes one"
        )
    return Secret(text)


def trusted_proxy(header: str | None, addresses: Collection[str]) -> TrustedProxy | None:
    """The proxy named by the flags; ``None`` without any.

    Raises:
        UsageError: one of the two flags is missing or unreadable.
    """
    if not header and not addresses:
        return None
    if not header or not addresses:
        raise UsageError(
            "trusting a proxy: want both --proxy-header and --proxy-address: a header alone can be sent by anybody"
        )
    if not header.isascii() or not header.replace("-", "").isalnum():
        raise UsageError(f"reading --proxy-header {header!r}: want the name of a header, such as X-Forwarded-User")
    try:
        networks = tuple(ipaddress.ip_network(each, strict=False) for each in addresses)
    except ValueError as error:
        raise UsageError(f"reading --proxy-address: want addresses or networks, such as 10.0.0.5: {error}") from error
    return TrustedProxy(header=header, networks=networks)


def guard_of(
    host: str,
    token_file: Path | None,
    proxy_header: str | None,
    proxy_addresses: Collection[str] | None,
    allowed_hosts: Collection[str] | None,
) -> Guard:
    """The rules for a command's flags.

    Raises:
        UsageError: other machines could reach the page without authentication, or a flag is unreadable.
    """
    return Guard.of(
        host,
        names=allowed_hosts or (),
        token=None if token_file is None else read_token(token_file),
        proxy=trusted_proxy(proxy_header, proxy_addresses or ()),
    )
