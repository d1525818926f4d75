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
    MAX_INT,
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
        address = None
    if address is None and (problem := _address_problem(text)):
        why = f"ParseAddr({quoted(text)}): {problem}"
        return Failed(f"IP Address {quoted(text)} parse error during conversion from string: {why}")
    if address is None or (isinstance(address, IPv6Address) and address.scope_id):
        return Failed(f"IP address {quoted(text)} with zone value is not allowed")
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        return Failed(f"IPv4-mapped IPv6 address {quoted(text)} is not allowed")
    return Address(address)


def _address_problem(text: str) -> str:
    """Why Go's package netip does not read the address, word for word."""
    first = next((char for char in text if char in ".:%"), "")
    if first == ":":
        return _problem_of_version_6(text)
    if first == ".":
        return _problem_of_version_4(text)
    return "missing IPv6 address" if first == "%" else "unable to parse IP"


def _problem_of_version_4(text: str) -> str:
    fields = text.split(".")
    for index, digits in enumerate(fields):
        if index > 3 and fields[4:] != [""]:
            return "IPv4 address too long"
        wrong = re.search("[^0-9]", digits)
        read = digits[: wrong.start()] if wrong else digits
        if len(read) > 1 and read[0] == "0":
            return "IPv4 field has octet with leading zero"
        if len(read) > 3 or int(read or 0) > 255:
            return "IPv4 field has value >255"
        before = sum(len(field) + 1 for field in fields[:index])
        if wrong:
            return _problem_at(text[before + wrong.start() :], "unexpected character")
        if not read:
            rest = text[max(before - (index > 0 and index == len(fields) - 1), 0) :]
            return _problem_at(rest, "IPv4 field must have at least one digit")
    return "IPv4 address too short" if len(fields) < 4 else ""


def _problem_of_version_6(text: str) -> str:  # noqa: C901, PLR0911, PLR0912 - one problem after the other, as in Go
    rest, percent, zone = text.partition("%")
    if percent and not zone:
        return "zone must be a non-empty string"
    has_gap = rest.startswith("::")
    read = 0  # bytes
    rest = rest[2:] if has_gap else rest
    if has_gap and not rest:
        return ""
    while read < _BYTES_OF_VERSION_6:
        digits = rest[: len(rest) - len(rest.lstrip(_HEX))]
        if len(digits) > 4:
            return _problem_at(rest, "each group must have 4 or less digits")
        if not digits:
            return _problem_at(rest, "each colon-separated field must have at least one digit")
        after = rest[len(digits) :]
        if after.startswith("."):
            if not has_gap and read != _BYTES_BEFORE_VERSION_4:
                return _problem_at(rest, "embedded IPv4 address must replace the final 2 fields of the address")
            if read > _BYTES_BEFORE_VERSION_4:
                return _problem_at(rest, "too many hex fields to fit an embedded IPv4 at the end of the address")
            problem = _problem_of_version_4(rest)
            if problem:
                return problem
            rest, read = "", read + 4
            break
        rest, read = after, read + 2
        if not rest:
            break
        if rest[0] != ":":
            return _problem_at(rest, "unexpected character, want colon")
        if rest == ":":
            return _problem_at(rest, "colon must be followed by more characters")
        rest = rest[1:]
        if rest[0] == ":":
            if has_gap:
                return _problem_at(rest, "multiple :: in address")
            has_gap, rest = True, rest[1:]
            if not rest:
                break
    if rest:
        return _problem_at(rest, "trailing garbage after address")
    if read < _BYTES_OF_VERSION_6:
        return "" if has_gap else "address string too short"
    return "the :: must expand to at least one field of zeros" if has_gap else ""


_BYTES_OF_VERSION_6: Final = 16
_BYTES_BEFORE_VERSION_4: Final = 12
_HEX: Final = "0123456789ABCDEFabcdef"


def _problem_at(rest: str, problem: str) -> str:
    return f"{problem} (at {quoted(rest)})"


def _is_canonical(text: str) -> Any:
    address = _address(text)
    return address if isinstance(address, Failed) else str(address.address) == text


def _network(text: str) -> Cidr | Failed:
    where = "network address parse error during conversion from string: "
    base, slash, bits = text.rpartition("/")
    address = _address(base)
    problem = ""
    if not slash:
        problem = "no '/'"
    elif isinstance(address, Failed) and (of_address := _address_problem(base)):
        problem = f"ParseAddr({quoted(base)}): {of_address}"
    elif "%" in base:
        problem = "IPv6 zones cannot be present in a prefix"
    elif not re.fullmatch("0|[1-9][0-9]*", bits) or int(bits) > MAX_INT:
        problem = f"bad bits after slash: {quoted(bits)}"
    elif int(bits) > (_BITS_OF_VERSION_6 if ":" in base else _BITS_OF_VERSION_4):
        problem = "prefix length out of range"
    if problem:
        return Failed(f"{where * 2}netip.ParsePrefix({quoted(text)}): {problem}")
    if isinstance(address, Failed):
        return Failed(f"{where}IPv4-mapped IPv6 address {quoted(text)} is not allowed")
    return Cidr(address.address, int(bits))


_BITS_OF_VERSION_4: Final = 32
_BITS_OF_VERSION_6: Final = 128


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
