"""Kubernetes' functions: quantities, semantic versions, URLs, IP addresses and networks."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Any, Final
from urllib.parse import parse_qs

from berth.cel.library.overloads import Overload, function, method
from berth.cel.types import BOOL, CIDR, DOUBLE, INT, IP, QUANTITY, SEMVER, STRING, URL, CELType, list_of, map_of
from berth.cel.values import (
    UNKNOWN_OVERLOAD,
    Address,
    Cidr,
    Failed,
    Quantity,
    Semver,
    UnknownValueError,
    Url,
    as_int64,
    quoted,
)


def _sign(number: Any, other: Any = 0) -> int:
    return int(number > other) - int(number < other)


def _is_read(parse: Callable[..., Any]) -> Callable[..., bool]:
    return lambda *args: not isinstance(parse(*args), Failed)


def _whole(quantity: Quantity) -> Any:
    number = quantity.whole()
    return Failed("cannot convert value to integer") if number is None else number


def _plus(quantity: Quantity, number: int) -> Quantity:
    return quantity.plus(Quantity(Fraction(number)))


def _minus(quantity: Quantity, number: int) -> Quantity:
    return quantity.minus(Quantity(Fraction(number)))


def _compare_quantities(one: Quantity, other: Quantity) -> int:
    return _sign(one.amount, other.amount)


def _compare_versions(one: Semver, other: Semver) -> int:
    return _sign(one.order(), other.order())


def _version(text: str, tolerant: bool) -> Semver | Failed:  # noqa: FBT001 - the second argument of semver()
    return Semver.parse_tolerant(text) if tolerant else Semver.parse(text)


def _ordered(of: CELType, word: str, compare: Callable[[Any, Any], int]) -> tuple[Overload, ...]:
    return (
        method("isGreaterThan", f"{word}_is_greater_than", (of, of), BOOL, lambda one, other: compare(one, other) > 0),
        method("isLessThan", f"{word}_is_less_than", (of, of), BOOL, lambda one, other: compare(one, other) < 0),
        method("compareTo", f"{word}_compare_to", (of, of), INT, compare),
    )


# -- addresses


def _address(text: str) -> Address | Failed:
    try:
        address = IPv6Address(text) if ":" in text else IPv4Address(text)
    except AddressValueError:
        why = f"ParseAddr({quoted(text)}): {_address_problem(text)}"
        return Failed(f"IP Address {quoted(text)} parse error during conversion from string: {why}")
    if isinstance(address, IPv6Address) and address.scope_id:
        return Failed(f"IP address {quoted(text)} with zone value is not allowed")
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        return Failed(f"IPv4-mapped IPv6 address {quoted(text)} is not allowed")
    return Address(address)


def _address_problem(text: str) -> str:
    """Why Go does not read the address: word for word if it looks like one of version 4."""
    first = next((char for char in text if char in ".:%"), "")
    if first != ".":
        return "missing IPv6 address" if first == "%" else "unable to parse IP"
    fields = text.split(".")
    for index, digits in enumerate(fields):
        wrong = re.search("[^0-9]", digits)
        read = digits[: wrong.start()] if wrong else digits
        if len(read) > 1 and read[0] == "0":
            return "IPv4 field has octet with leading zero"
        if len(read) > 3 or int(read or 0) > 255:
            return "IPv4 field has value >255"
        if wrong:
            rest = text[sum(len(field) + 1 for field in fields[:index]) + wrong.start() :]
            return f"unexpected character (at {quoted(rest)})"
        if not read:
            rest = text[
                max(sum(len(field) + 1 for field in fields[:index]) - (index > 0 and index == len(fields) - 1), 0) :
            ]
            return f"IPv4 field must have at least one digit (at {quoted(rest)})"
    return "IPv4 address too short" if len(fields) < 4 else "IPv4 address too long"


def _is_canonical(text: str) -> Any:
    address = _address(text)
    return address if isinstance(address, Failed) else str(address.address) == text


def _network(text: str) -> Cidr | Failed:
    where = "network address parse error during conversion from string: " * 2
    base, slash, bits = text.rpartition("/")
    address = _address(base) if slash else Failed("no '/'")
    if isinstance(address, Failed):
        if "mapped" in address.reason:
            mapped = f"IPv4-mapped IPv6 address {quoted(text)} is not allowed"
            return Failed(f"network address parse error during conversion from string: {mapped}")
        reason = f"ParseAddr({quoted(base)}): {_address_problem(base)}" if slash else "no '/'"
        return Failed(f"{where}netip.ParsePrefix({quoted(text)}): {reason}")
    if not re.fullmatch("0|[1-9][0-9]{0,2}", bits):
        return Failed(f"{where}netip.ParsePrefix({quoted(text)}): bad bits after slash: {quoted(bits)}")
    if int(bits) > address.address.max_prefixlen:
        return Failed(f"{where}netip.ParsePrefix({quoted(text)}): prefix length out of range")
    return Cidr(address.address, int(bits))


def _contains_address(network: Cidr, other: Address | str) -> Any:
    address = _address(other) if isinstance(other, str) else other
    # Kubernetes hands the error of a text on as an argument, which has no such overload.
    return UNKNOWN_OVERLOAD if isinstance(address, Failed) else network.contains(address.address)


def _contains_network(network: Cidr, other: Cidr | str) -> Any:
    inner = _network(other) if isinstance(other, str) else other
    if isinstance(inner, Failed):
        return inner
    return network.bits <= inner.bits and network.contains(inner.address)


def _is_local_multicast(of: Address) -> bool:
    address = of.address
    if isinstance(address, IPv4Address):
        return address.packed[:3] == b"\xe0\x00\x00"
    return address.packed[0] == 0xFF and address.packed[1] & 0x0F == 0x02


def _is_global_unicast(of: Address) -> bool:
    address = of.address
    special = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    return not special and address != IPv4Address("255.255.255.255")


# -- URLs

_CHARS: Final = r"[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}"
_URL: Final = re.compile(
    rf"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):)?"
    rf"(?://(?:[A-Za-z0-9._~!$&'()*+,;=:%-]*@)?"
    rf"(?P<host>(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?)|(?!//))"
    rf"(?P<path>(?:/(?:{_CHARS})*)*)"
    rf"(?:\?(?P<query>(?:{_CHARS}|[/?])*))?"
)


def _url(text: str) -> Url | Failed:
    """The URL's parts, if it has the plain form of RFC 3986 without a fragment; Go reads more."""
    if ":" not in text and not text.startswith(("/", "*")) and text.isprintable():
        why = "invalid URI for request" if text else "empty url"
        return Failed(f"URL parse error during conversion from string: parse {quoted(text)}: {why}")
    found = _URL.fullmatch(text)
    parts = found.groupdict() if found else {}
    if not (parts.get("scheme") or text.startswith("/")) or not (parts.get("host") or parts.get("path")):
        raise UnknownValueError(f"url({text!r})")
    return Url(
        scheme=(parts["scheme"] or "").lower(),
        host=parts["host"] or "",
        path=parts["path"],
        query=parts["query"] or "",
        text=text,
    )


def _hostname(url: Url) -> str:
    host = url.host if url.host.endswith("]") else re.sub(":[0-9]*$", "", url.host)
    return host.removeprefix("[").removesuffix("]")


def _port(url: Url) -> str:
    found = re.search(r":([0-9]*)$", url.host)
    return found[1] if found and not url.host.endswith("]") else ""


def _query(url: Url) -> dict[str, list[str]]:
    if ";" in url.query or "%" in url.query:
        raise UnknownValueError(f"url({url.text!r}).getQuery()")
    return parse_qs(url.query, keep_blank_values=True)


KUBERNETES: Final[tuple[Overload, ...]] = (
    function("quantity", "string_to_quantity", (STRING,), QUANTITY, Quantity.parse),
    function("isQuantity", "is_quantity_string", (STRING,), BOOL, _is_read(Quantity.parse)),
    function("sign", "quantity_sign", (QUANTITY,), INT, lambda quantity: _sign(quantity.amount)),
    *_ordered(QUANTITY, "quantity", _compare_quantities),
    method("asApproximateFloat", "quantity_get_float", (QUANTITY,), DOUBLE, Quantity.approximate),
    method("asInteger", "quantity_get_int", (QUANTITY,), INT, _whole),
    method("isInteger", "quantity_is_integer", (QUANTITY,), BOOL, lambda quantity: quantity.whole() is not None),
    method("add", "quantity_add", (QUANTITY, QUANTITY), QUANTITY, Quantity.plus),
    method("add", "quantity_add_int", (QUANTITY, INT), QUANTITY, _plus),
    method("sub", "quantity_sub", (QUANTITY, QUANTITY), QUANTITY, Quantity.minus),
    method("sub", "quantity_sub_int", (QUANTITY, INT), QUANTITY, _minus),
    function("semver", "string_to_semver", (STRING,), SEMVER, Semver.parse),
    function("semver", "string_bool_to_semver", (STRING, BOOL), SEMVER, _version),
    function("isSemver", "is_semver_string", (STRING,), BOOL, _is_read(Semver.parse)),
    function("isSemver", "is_semver_string_bool", (STRING, BOOL), BOOL, _is_read(_version)),
    *_ordered(SEMVER, "semver", _compare_versions),
    method("major", "semver_major", (SEMVER,), INT, lambda version: as_int64(version.major)),
    method("minor", "semver_minor", (SEMVER,), INT, lambda version: as_int64(version.minor)),
    method("patch", "semver_patch", (SEMVER,), INT, lambda version: as_int64(version.patch)),
    function("ip", "string_to_ip", (STRING,), IP, _address),
    function("isIP", "is_ip", (STRING,), BOOL, _is_read(_address)),
    function("ip.isCanonical", "ip_is_canonical", (STRING,), BOOL, _is_canonical),
    method("family", "ip_family", (IP,), INT, lambda of: of.address.version),
    method("isUnspecified", "ip_is_unspecified", (IP,), BOOL, lambda of: of.address.is_unspecified),
    method("isLoopback", "ip_is_loopback", (IP,), BOOL, lambda of: of.address.is_loopback),
    method("isLinkLocalMulticast", "ip_is_link_local_multicast", (IP,), BOOL, _is_local_multicast),
    method("isLinkLocalUnicast", "ip_is_link_local_unicast", (IP,), BOOL, lambda of: of.address.is_link_local),
    method("isGlobalUnicast", "ip_is_global_unicast", (IP,), BOOL, _is_global_unicast),
    function("string", "ip_to_string", (IP,), STRING, lambda of: str(of.address)),
    function("cidr", "string_to_cidr", (STRING,), CIDR, _network),
    function("isCIDR", "is_cidr", (STRING,), BOOL, _is_read(_network)),
    method("containsIP", "cidr_contains_ip_string", (CIDR, STRING), BOOL, _contains_address),
    method("containsIP", "cidr_contains_ip_ip", (CIDR, IP), BOOL, _contains_address),
    method("containsCIDR", "cidr_contains_cidr_string", (CIDR, STRING), BOOL, _contains_network),
    method("containsCIDR", "cidr_contains_cidr", (CIDR, CIDR), BOOL, _contains_network),
    method("ip", "cidr_ip", (CIDR,), IP, lambda network: Address(network.address)),
    method("prefixLength", "cidr_prefix_length", (CIDR,), INT, lambda network: network.bits),
    method("masked", "cidr_masked", (CIDR,), CIDR, Cidr.masked),
    function("string", "cidr_to_string", (CIDR,), STRING, lambda network: f"{network.address}/{network.bits}"),
    function("url", "string_to_url", (STRING,), URL, _url),
    function("isURL", "is_url_string", (STRING,), BOOL, _is_read(_url)),
    method("getScheme", "url_get_scheme", (URL,), STRING, lambda url: url.scheme),
    method("getHost", "url_get_host", (URL,), STRING, lambda url: url.host),
    method("getHostname", "url_get_hostname", (URL,), STRING, _hostname),
    method("getPort", "url_get_port", (URL,), STRING, _port),
    method("getEscapedPath", "url_get_escaped_path", (URL,), STRING, lambda url: url.path),
    method("getQuery", "url_get_query", (URL,), map_of(STRING, list_of(STRING)), _query),
)
