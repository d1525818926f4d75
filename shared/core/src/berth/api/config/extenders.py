"""Completes extenders, with kube-scheduler's checks and some of berth's own.

Resources that an extender ignores (``ignoredByScheduler``) are added to the arguments of NodeResourcesFit in every
profile.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

import msgspec

from berth.api.config.configuration import ExtenderConfiguration, ExtenderTls, ProfileConfiguration
from berth.api.config.decode import Problems
from berth.api.config.encode import go_duration
from berth.api.config.types import FileExtender, FileExtenderTls
from berth.api.resources import is_extended

DEFAULT_TIMEOUT: Final = ExtenderConfiguration(url_prefix="", name="").timeout
# Longest time-out: a pod that waits for an extender occupies its slot in the window and in its scorer.
MOST_TIMEOUT: Final = timedelta(minutes=1)
MOST_WEIGHT: Final = 2**31 - 1
EXAMPLE: Final = "http://extender.example:8888/scheduler"
FIT: Final = "NodeResourcesFit"
_PART: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_MOST_PREFIX: Final = 253
_SHOWN_RESOURCE: Final = "an extended resource such as example.com/gpu"


def complete_extenders(given: Sequence[FileExtender], problems: Problems) -> tuple[ExtenderConfiguration, ...]:
    """The extenders in the order of questions: ignorable ones come last, as in kube-scheduler."""
    seen: set[str] = set()
    made = [_complete(one, f"extenders[{index}]", seen, problems) for index, one in enumerate(given)]
    binders = sum(bool(one.bind_verb) for one in made)
    if binders > 1:
        problems.append(f"extenders: want one with bindVerb at most, got {binders}")
    return tuple(sorted(made, key=lambda one: one.ignorable))


def without_ignored_resources(
    profiles: tuple[ProfileConfiguration, ...], given: Sequence[FileExtender]
) -> tuple[ProfileConfiguration, ...]:
    """The profiles, with resources ignored in NodeResourcesFit that extenders manage."""
    ignored = [each.name for one in given for each in one.managed_resources or () if each.ignored_by_scheduler]
    return tuple(_ignoring(profile, ignored) for profile in profiles) if ignored else profiles


def _ignoring(profile: ProfileConfiguration, resources: list[str]) -> ProfileConfiguration:
    args = profile.args.get(FIT)
    if not isinstance(args, msgspec.Struct) or "ignored_resources" not in args.__struct_fields__:
        return profile
    before: list[str] = getattr(args, "ignored_resources") or []  # noqa: B009 - a field of the plugin's own type
    changed = msgspec.structs.replace(args, ignored_resources=[*before, *resources])
    return replace(profile, args={**profile.args, FIT: changed})


def _complete(given: FileExtender, path: str, seen: set[str], problems: Problems) -> ExtenderConfiguration:
    problems.extend(f"{path}.{problem}" for problem in _problems(given))
    for index, resource in enumerate(given.managed_resources or ()):
        where = f"{path}.managedResources[{index}].name"
        if not _is_extended_name(resource.name):
            problems.add(where, _SHOWN_RESOURCE, resource.name)
        if resource.name in seen:
            problems.append(f"{where}: want it once in all extenders, got {resource.name!r} again")
        seen.add(resource.name)
    return ExtenderConfiguration(
        url_prefix=given.url_prefix,
        name=shown_url(given.url_prefix),
        filter_verb=given.filter_verb or "",
        prioritize_verb=given.prioritize_verb or "",
        weight=given.weight or 0,
        bind_verb=given.bind_verb or "",
        preempt_verb=given.preempt_verb or "",
        timeout=given.http_timeout or DEFAULT_TIMEOUT,
        node_cache_capable=given.node_cache_capable or False,
        managed_resources=frozenset(each.name for each in given.managed_resources or ()),
        ignorable=given.ignorable or False,
        tls=_tls(given, path, problems),
    )


def _problems(given: FileExtender) -> Iterator[str]:
    if not _is_http(given.url_prefix):
        yield f"urlPrefix: want a URL such as {EXAMPLE}, got {shown_url(given.url_prefix)!r}"
    if given.prioritize_verb and not 0 < (given.weight or 0) <= MOST_WEIGHT:
        yield f"weight: want 1..{MOST_WEIGHT} beside prioritizeVerb, got {given.weight or 0}"
    if given.http_timeout is not None and given.http_timeout > MOST_TIMEOUT:
        yield f"httpTimeout: want {go_duration(MOST_TIMEOUT)} at most, got {go_duration(given.http_timeout)}"


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        return False


def shown_url(url: str) -> str:
    """The URL without user, password, query and fragment, which may contain a token."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a URL that cannot be read"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme else f"{host}{parts.path}"


def _is_extended_name(name: str) -> bool:
    """A qualified name of an extended resource, by kube-scheduler's validation."""
    prefix, slash, last = name.rpartition("/")
    is_qualified = bool(_PART.fullmatch(last)) and len(prefix) <= _MOST_PREFIX and bool(_PREFIX.fullmatch(prefix))
    return bool(slash) and is_qualified and is_extended(name)


def _tls(given: FileExtender, path: str, problems: Problems) -> ExtenderTls:
    """Without a CA, ``enableHTTPS`` skips verification, as in kube-scheduler."""
    file, path = given.tls_config or FileExtenderTls(), f"{path}.tlsConfig"
    has_ca, has_cert, has_key = (bool(a or b) for a, b in _pairs(file))
    if file.insecure and has_ca:
        problems.append(f"{path}: want insecure or a CA, got both")
    if has_cert != has_key:
        problems.append(f"{path}: want a certificate and its key, got one of them")
    return ExtenderTls(
        insecure=bool(file.insecure) or (bool(given.enable_https) and not has_ca),
        server_name=file.server_name or "",
        cert_file=file.cert_file or "",
        key_file=file.key_file or "",
        ca_file=file.ca_file or "",
        cert_pem=_decoded(file.cert_data, f"{path}.certData", problems),
        key_pem=_decoded(file.key_data, f"{path}.keyData", problems),
        ca_pem=_decoded(file.ca_data, f"{path}.caData", problems),
    )


def _pairs(file: FileExtenderTls) -> tuple[tuple[str | None, str | None], ...]:
    return (file.ca_data, file.ca_file), (file.cert_data, file.cert_file), (file.key_data, file.key_file)


def _decoded(text: str | None, path: str, problems: Problems) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError):
        problems.append(f"{path}: want base64")
        return b""
