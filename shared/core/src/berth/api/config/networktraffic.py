"""NetworkTraffic's annotations and arguments, which the collector reads without plugins.

Arguments have a short form (``ip``, ``deviceName``, ``timeRange``) and a full one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from berth.api.config.types import Args, Point
from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.resources import QuantityError, value
from berth.errors import PermanentError

NAME: Final = "NetworkTraffic"
ALIAS: Final = "network_traffic"
POINTS: Final = (Point.FILTER, Point.SCORE)
RECEIVE: Final = "receive"
TRANSMIT: Final = "transmit"
BOTH: Final = "both"
RELATIVE: Final = "Relative"
CAPACITY: Final = "Capacity"
_SHORTEST_RANGE: Final = timedelta(seconds=5)
_LONGEST_RANGE: Final = timedelta(days=1)
_MOST_MINUTES: Final = 1440
_SHORTEST_AGE: Final = timedelta(minutes=5)
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OF_QUERIES: Final = ("device", "__name__")  # labels by which queries select series themselves


DEFAULT_NODE_LABEL: Final = "node"

# Annotations of a pod: bits per second as a quantity (10M), as read by the CNI plugin that shapes traffic.
INGRESS_ANNOTATION: Final = "kubernetes.io/ingress-bandwidth"
EGRESS_ANNOTATION: Final = "kubernetes.io/egress-bandwidth"
# Annotation of a node: bits per second of its link, for network cards that report no speed or a wrong one.
LINK_CAPACITY_ANNOTATION: Final = "berth/link-capacity"

_BITS_PER_BYTE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthQuery:
    """The average traffic of these devices of all nodes over ``time_range``, in each direction."""

    url: str  # with scheme
    # Regular expressions for whole names of network devices. Empty: the node's own devices.
    devices: tuple[str, ...] = ()
    time_range: timedelta
    # A metric label with the node's name, if relabelling has made one.
    node_label: str = DEFAULT_NODE_LABEL
    # Labels of the series that count, each with a regular expression for the whole value.
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def token(self) -> str:
        """The query's name in keys: short, stable, equal in every process."""
        labels = (f"{label}={value}" for label, value in self.labels)
        seconds = f"{self.time_range.total_seconds():g}"
        text = "\0".join((self.url, *self.devices, "", seconds, self.node_label, *labels))
        return f"q{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


class NetworkTrafficArgs(Args, frozen=True, kw_only=True):
    """Source of the bandwidth, and how it is scored. Rates are bits per second (``1G``)."""

    ip: str = ""
    """Short form of ``url``: host and port; http unless it has a scheme."""
    device_name: str = ""
    """Short form of ``devices``: the name of one device."""
    time_range: int | None = None
    """Minutes to average over."""
    url: str = ""
    """URL of the Prometheus server."""
    devices: list[str] | None = None
    """Regular expressions for whole device names; default: the node's own devices, without those of pods."""
    range: timedelta | None = None
    """Replaces ``timeRange``: a duration such as 90s; at least two scrape intervals."""
    direction: str = RECEIVE
    """``receive``, ``transmit`` or ``both``."""
    scoring: str = RELATIVE
    """Relative (to the busiest node) or Capacity (of the node's own link)."""
    capacity: str = ""
    """Capacity of links that do not report theirs; unset: such nodes count as unknown under Capacity."""
    unknown_score: int = 0
    """Score of nodes without a recent sample, 0..100."""
    maximum_age: timedelta | None = None
    """Age at which samples are ignored; default: the range, at least 5 minutes."""
    pod_bandwidth: str = "10M"
    """Estimate for a placed pod without annotation, in each direction."""
    saturation_percent: int = 0
    """Share of a link's capacity, 1..100, from which its node is filtered out; 0: no filter."""
    node_label: str = DEFAULT_NODE_LABEL
    """Metric label with the node's name, if any."""
    labels: dict[str, str] | None = None
    """Only series with these labels count, such as ``cluster: east``: a regular expression for each whole value."""


def query_of(args: NetworkTrafficArgs) -> BandwidthQuery:
    """The query for valid arguments."""
    return BandwidthQuery(
        url=_url(args).rstrip("/"),
        devices=tuple(args.devices or ((re.escape(args.device_name),) if args.device_name else ())),
        time_range=time_range_of(args),
        node_label=args.node_label,
        labels=tuple(sorted((args.labels or {}).items())),
    )


def time_range_of(args: NetworkTrafficArgs) -> timedelta:
    """The range to average over; 5 minutes by default."""
    return args.range or timedelta(minutes=args.time_range if args.time_range is not None else 5)


def maximum_age_of(args: NetworkTrafficArgs) -> timedelta:
    """The age at which samples are ignored."""
    return args.maximum_age or max(time_range_of(args), _SHORTEST_AGE)


def bytes_per_second(bits: str | float) -> float:
    """A quantity of bits per second (``10M``) in bytes per second.

    Raises:
        QuantityError: not a quantity, or below 0.
    """
    amount = value(bits)
    if amount < 0:
        raise QuantityError(f"want 0 or more, got {bits!r}")
    return amount / _BITS_PER_BYTE


def annotated_rate(thing: Pod | Node, annotation: str) -> float | None:
    """Bytes per second of an object's annotation; ``None`` if absent or unreadable."""
    written = (thing.metadata.annotations or {}).get(annotation)
    if written is None:
        return None
    try:
        return bytes_per_second(written)
    except PermanentError:
        return None


def validate(args: NetworkTrafficArgs, path: str) -> list[str]:
    return [
        *_form_problems(args, path),
        *_address_problems(args, path),
        *_device_problems(args, path),
        *label_problems(args.node_label, args.labels, path),
        *_range_problems(args, path),
        *_choice_problems(args, path),
        *_number_problems(args, path),
    ]


def _url(args: NetworkTrafficArgs) -> str:
    return with_scheme(args.url or args.ip)


def with_scheme(address: str) -> str:
    """A server's address; http unless it says otherwise."""
    return address if "://" in address else f"http://{address}"


def _form_problems(args: NetworkTrafficArgs, path: str) -> list[str]:
    pairs = (("ip", args.ip, "url", args.url), ("deviceName", args.device_name, "devices", args.devices))
    problems = [f"{path}.{long}: want {short} or {long}, got both" for short, a, long, b in pairs if a and b]
    if args.time_range is not None and args.range is not None:
        problems.append(f"{path}.range: want timeRange or range, got both")
    return problems


def _address_problems(args: NetworkTrafficArgs, path: str) -> list[str]:
    if not args.url and not args.ip:
        return [f"{path}.url: required (or ip): the address of a Prometheus server"]
    return url_problems(args.url, f"{path}.url") if args.url else url_problems(args.ip, f"{path}.ip")


_HOST: Final = re.compile(r"[\w.-]+|[\da-f:.]+(?:%.+)?")  # a name or an address; no template that was not filled in


def url_problems(address: str, path: str) -> list[str]:
    """Problems of a Prometheus server's address; http unless it has a scheme."""
    try:
        parts = urlsplit(with_scheme(address))
        is_valid = parts.scheme in ("http", "https") and _HOST.fullmatch(parts.hostname or "") and parts.port != 0
    except ValueError:
        is_valid, parts = False, urlsplit("")
    if parts.username is not None or parts.password is not None:
        return [f"{path}: want no user and password in it (addresses are logged)"]
    if "?" in address or "#" in address:
        return [f"{path}: want no query and no fragment in it (? or #)"]
    shown = "***" if "@" in address else address
    return [] if is_valid else [f"{path}: want http://HOST[:PORT] or https://HOST[:PORT], got {shown!r}"]


def _device_problems(args: NetworkTrafficArgs, path: str) -> list[str]:
    problems = [f"{path}.devices: want at least one, got none"] if args.devices == [] else []
    for index, device in enumerate(args.devices or ()):
        problems += _expression_problems(device, f"{path}.devices[{index}]")
        if not device:
            problems.append(f"{path}.devices[{index}]: want a name, got ''")
    return problems


def label_problems(node_label: str, labels: Mapping[str, str] | None, path: str) -> list[str]:
    """Problems of the arguments nodeLabel and labels."""
    problems = []
    if not _LABEL.fullmatch(node_label):
        problems.append(f"{path}.nodeLabel: want the name of a label, got {node_label!r}")
    for label, expression in (labels or {}).items():
        if not _LABEL.fullmatch(label) or label in _OF_QUERIES:
            problems.append(f"{path}.labels: want names of labels other than device and __name__, got {label!r}")
        problems += _expression_problems(expression, f"{path}.labels.{label}")
    return problems


def _expression_problems(text: str, path: str) -> list[str]:
    try:
        re.compile(text)
    except re.error as exc:
        return [f"{path}: want a regular expression, got {text!r} ({exc})"]
    return []


def _range_problems(args: NetworkTrafficArgs, path: str) -> list[str]:
    problems = []
    if args.time_range is not None and not 1 <= args.time_range <= _MOST_MINUTES:
        problems.append(f"{path}.timeRange: want 1..{_MOST_MINUTES} (minutes), got {args.time_range}")
    return problems + age_problems(args.range, args.maximum_age, path)


def range_problems(time_range: timedelta, path: str) -> list[str]:
    """Problems of a time to average over."""
    if _SHORTEST_RANGE <= time_range <= _LONGEST_RANGE:
        return []
    return [f"{path}: want 5s..24h, got {time_range.total_seconds():g}s"]


def age_problems(time_range: timedelta | None, maximum_age: timedelta | None, path: str) -> list[str]:
    """Problems of the arguments range and maximumAge."""
    problems = range_problems(time_range, f"{path}.range") if time_range is not None else []
    if maximum_age is not None and maximum_age < _SHORTEST_RANGE:
        problems.append(f"{path}.maximumAge: want at least 5s, got {maximum_age.total_seconds():g}s")
    return problems


def _choice_problems(args: NetworkTrafficArgs, path: str) -> list[str]:
    problems = []
    if args.direction not in (RECEIVE, TRANSMIT, BOTH):
        problems.append(f"{path}.direction: want receive, transmit or both, got {args.direction!r}")
    if args.scoring not in (RELATIVE, CAPACITY):
        problems.append(f"{path}.scoring: want Relative or Capacity, got {args.scoring!r}")
    return problems


def _number_problems(args: NetworkTrafficArgs, path: str) -> list[str]:
    percents = (("unknownScore", args.unknown_score), ("saturationPercent", args.saturation_percent))
    problems = [f"{path}.{name}: want 0..100, got {percent}" for name, percent in percents if not 0 <= percent <= 100]
    for name, bits in (("capacity", args.capacity), ("podBandwidth", args.pod_bandwidth)):
        if bits or name == "podBandwidth":
            problems += _rate_problems(bits, f"{path}.{name}")
    if args.capacity and not problems and not bytes_per_second(args.capacity):
        problems.append(f"{path}.capacity: want more than 0, got {args.capacity!r}")
    return problems


def _rate_problems(bits: str, path: str) -> list[str]:
    try:
        bytes_per_second(bits)
    except QuantityError as exc:
        return [f"{path}: {exc} (bits per second)"]
    return []
