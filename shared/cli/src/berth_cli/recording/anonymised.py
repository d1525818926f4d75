"""A recording without names: each message decoded, its texts masked field by field, and written again.

Unknown fields are dropped, as in any decoding. Undecodable messages and facts become empty objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from typing import Any, Final, TypeVar, overload

import msgspec

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.encode import in_full
from berth.api.config.networktraffic import (
    EGRESS_ANNOTATION,
    INGRESS_ANNOTATION,
    LINK_CAPACITY_ANNOTATION,
    NetworkTrafficArgs,
    query_of,
)
from berth.api.config.nodeload.args import NodeLoadArgs
from berth.api.config.nodeload.plugins import LOAD_PLUGINS
from berth.api.config.nodeload.trimaran import TrimaranArgs
from berth.api.devices import CapacityRange, CapacityRequestPolicy, Counter, DeviceCapacity
from berth.api.kinds import WATCHED_KINDS
from berth.api.meta import NOT_KEPT
from berth.api.podgroups import GROUP_LABEL
from berth.bus.topology import BANDWIDTH, CLUSTER, DECISIONS, FACTS, PENDING, RANKED
from berth.decoding import decode_json
from berth.errors import DecodeError
from berth.messages.attempts import Decision, Pending, Ranked
from berth.messages.earmarks import EARMARK, FILTER, Earmark
from berth.messages.encoding import Message, UnknownSchemaError, decode, encode
from berth.messages.groupattempts import GroupPending, GroupRanked, decode_group
from berth.messages.livedata import decode_sample, encode_sample
from berth.messages.mirror import WATERMARK, decode_entry, decode_watermark, encode_entry, encode_watermark
from berth.messages.subjects import PodSubject, key, parse_key
from berth.plugins.registry import BUILT_IN
from berth_cli.recording.configuration import recorded_configuration
from berth_cli.recording.file import Header, Recorded, Source, Waiting, recorded
from berth_cli.recording.mask import Mask

S = TypeVar("S", bound=msgspec.Struct)

_EMPTY: Final = b"{}"
_STREAMS: Final[Mapping[Source, type[Message]]] = {PENDING: Pending, RANKED: Ranked, DECISIONS: Decision}
# All texts in them are quantities.
_OF_QUANTITIES: Final = (DeviceCapacity, CapacityRequestPolicy, CapacityRange, Counter)
_RATES: Final = frozenset({INGRESS_ANNOTATION, EGRESS_ANNOTATION, LINK_CAPACITY_ANNOTATION})
_DECODERS: Final[Mapping[str, msgspec.json.Decoder[Any]]] = {
    **{kind.name: msgspec.json.Decoder(kind.struct) for kind in WATCHED_KINDS},
    EARMARK: msgspec.json.Decoder(Earmark),
}


class Anonymiser:
    def __init__(self, configuration: KubeSchedulerConfiguration) -> None:
        self._mask = Mask(_plugin_names(recorded_configuration(configuration)))
        self._texts = {**_by_field(self._mask), "scorer": self._scorer}
        self._scorers: dict[str, str] = {}
        self._queries = dict(self._masked_queries(configuration))
        self._configuration = configuration

    def header(self, head: Header) -> Header:
        return msgspec.structs.replace(
            head,
            bus_id=self._mask.name(head.bus_id),
            config=self._mask.name(head.config),
            configuration=self._masked_configuration(),
            anonymised=True,
        )

    @overload
    def of(self, record: Recorded) -> Recorded: ...

    @overload
    def of(self, record: Waiting) -> Waiting: ...

    def of(self, record: Recorded | Waiting) -> Recorded | Waiting:
        return self._list(record) if isinstance(record, Waiting) else self._message(record)

    def _list(self, waiting: Waiting) -> Waiting:
        decisions = list(map(self._message, waiting.decisions))
        return msgspec.structs.replace(waiting, pods=list(map(self._struct, waiting.pods)), decisions=decisions)

    def _message(self, record: Recorded) -> Recorded:
        try:
            subject = self._subject(record)
        except DecodeError:
            return self._with(record, f"unreadable.{record.sequence}", _EMPTY)
        return self._with(record, subject, self._payload(record))

    @staticmethod
    def _with(record: Recorded, subject: str, payload: bytes | None) -> Recorded:
        return recorded(record.source, record.sequence, record.time, subject, payload)

    def _subject(self, record: Recorded) -> str:
        if record.source in _STREAMS:
            pod = PodSubject.parse(record.subject)
            names = {each: self._mask.name(getattr(pod, each)) for each in ("profile", "namespace", "pod")}
            return str(msgspec.structs.replace(pod, **names))
        kind, name = parse_key(record.subject)
        if record.source == BANDWIDTH:
            kind = self._queries.get(kind, self._mask.name(kind))
        elif record.source == FACTS:
            kind = self._mask.name(kind)
        elif kind not in {*_DECODERS, WATERMARK}:
            raise DecodeError(f"decoding key {record.subject!r:.80}: want a kind that berth reads")
        return key(kind, self._mask.name(name))

    def _payload(self, record: Recorded) -> bytes | None:
        payload = record.payload
        if payload is None:
            return None
        try:
            if record.source in _STREAMS:
                return encode(self._struct(_decoded(record.source, payload)))
            if record.source == CLUSTER:
                return self._mirrored(parse_key(record.subject)[0], payload)
            return encode_sample(decode_sample(payload)) if record.source == BANDWIDTH else _EMPTY
        except DecodeError:
            return _EMPTY

    def _mirrored(self, kind: str, payload: bytes) -> bytes:
        if kind == WATERMARK:
            return encode_watermark(self._struct(decode_watermark(payload)))
        entry = self._struct(decode_entry(payload))
        thing = self._struct(decode_json(_DECODERS[kind], entry.object, "a mirrored object"))
        return encode_entry(msgspec.structs.replace(entry, object=msgspec.Raw(msgspec.json.encode(thing))))

    def _struct(self, thing: S) -> S:
        # `whole`, which only extenders read, is left out.
        changed = {}
        has_amounts = isinstance(thing, _OF_QUANTITIES)
        for name in thing.__struct_fields__:
            value = getattr(thing, name)
            masked = NOT_KEPT if name == "whole" else self._masked(value, "requests" if has_amounts else name)
            if masked is not value:
                changed[name] = masked
        return msgspec.structs.replace(thing, **changed) if changed else thing

    def _masked(self, value: Any, field: str) -> Any:
        if isinstance(value, str):
            return value if isinstance(value, Enum) else self._texts.get(field, self._mask.name)(value)
        if isinstance(value, msgspec.Struct):
            return self._struct(value)
        if isinstance(value, list | tuple):
            return type(value)(self._masked(each, field) for each in value)
        if isinstance(value, dict):
            return {self._mask.name(each): self._under(each, given, field) for each, given in value.items()}
        return value

    def _under(self, name: str, value: Any, field: str) -> Any:
        if field == "labels" and name == GROUP_LABEL:
            return self._mask.name(value)  # as the group's own name, where other labels keep numbers
        is_rate = field == "annotations" and name in _RATES
        return self._mask.quantity(value) if is_rate else self._masked(value, field)

    def _scorer(self, identity: str) -> str:
        return self._scorers.setdefault(identity, f"scorer-{len(self._scorers) + 1}")

    # --- the configuration

    def _masked_queries(self, configuration: KubeSchedulerConfiguration) -> Mapping[str, str]:
        # Keys contain queries' hashes of their addresses; masked addresses have other hashes.
        found: dict[str, str] = {}
        for profile in configuration.profiles:
            for name, args in profile.args.items():
                if (plugin := LOAD_PLUGINS.get(name)) is not None:
                    readings = zip(plugin.readings(args), plugin.readings(self._masked_source(args)), strict=True)
                    found.update((own.query.token, masked.query.token) for own, masked in readings)
                elif isinstance(args, NetworkTrafficArgs):
                    masked = msgspec.structs.replace(
                        args,
                        url=args.url and self._mask.url(args.url),
                        ip=args.ip and self._mask.url(args.ip),
                        node_label=self._mask.name(args.node_label),
                    )
                    found[query_of(args).token] = query_of(masked).token
        return found

    def _masked_source(self, args: Any) -> Any:
        # As in the masked configuration.
        if isinstance(args, NodeLoadArgs):
            labels = args.labels and {name: self._mask.value(value) for name, value in args.labels.items()}
            url = args.url and self._mask.url(args.url)
            return msgspec.structs.replace(args, url=url, labels=labels, node_label=self._mask.value(args.node_label))
        if isinstance(args, TrimaranArgs) and args.metric_provider.address:
            provider = args.metric_provider
            masked = msgspec.structs.replace(provider, address=self._mask.url(provider.address))
            return msgspec.structs.replace(args, metric_provider=masked)
        return args

    def _masked_configuration(self) -> dict[str, Any]:
        document = recorded_configuration(self._configuration)
        masked: dict[str, Any] = self._document(document, "")
        for profile, written in zip(self._configuration.profiles, masked["profiles"], strict=True):
            for plugin in written["pluginConfig"]:
                if plugin["name"] not in BUILT_IN:
                    kept = {name: plugin["args"][name] for name in ("apiVersion", "kind")}
                    plugin["args"] = kept | self._foreign(profile.args[plugin["name"]])
        return masked

    def _foreign(self, value: Any) -> Any:
        # Arguments of a plugin from elsewhere may contain anything, so every text counts as a name. Fields keep their
        # names; the keys of a mapping do not, because they may be values of a label.
        if isinstance(value, msgspec.Struct):
            fields = ((field.encode_name, getattr(value, field.name)) for field in msgspec.structs.fields(type(value)))
            return {name: self._foreign(given) for name, given in fields if given is not None}
        if isinstance(value, Mapping):
            return {self._mask.value(str(name)): self._foreign(given) for name, given in value.items()}
        if isinstance(value, list | tuple):
            return [self._foreign(each) for each in value]
        written = in_full(value)
        return self._mask.value(written) if isinstance(written, str) and not isinstance(value, timedelta) else written

    def _document(self, value: Any, field: str) -> Any:
        if isinstance(value, Mapping):
            return {name: self._document(each, name) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._document(each, field) for each in value]
        if not isinstance(value, str) or field in _KEPT_SETTINGS or not value:
            return value
        if field in {"url", "ip", "urlPrefix", "address", "watcherAddress"}:
            return self._mask.url(value)
        return self._mask.quantity(value) if field in _AMOUNTS else self._mask.value(value)


# Settings of a configuration that identify no owner.
_KEPT_SETTINGS: Final = frozenset(
    {
        "apiVersion",
        "kind",
        "leaseDuration",
        "renewDeadline",
        "retryPeriod",
        "httpTimeout",
        "bindingTimeout",
        "filterTimeout",
        "range",
        "maximumAge",
        "devices",
        "deviceName",
        "statistic",
        "estimator",
        "usageAggregationType",
        "usageAggregatedDuration",
        "scoreAggregationType",
        "scoreAggregatedDuration",
        "defaultRequests",
        "defaultRequestsMultiplier",
        "type",
    }
)
_AMOUNTS: Final = frozenset({"podBandwidth", "capacity"})


def _plugin_names(document: Mapping[str, Any]) -> list[str]:
    return [FILTER] + [
        str(ref["name"])
        for profile in document["profiles"]
        for ref in (
            *profile["pluginConfig"],
            *(ref for point in profile["plugins"].values() for ref in point["enabled"]),
        )
    ]


def _decoded(source: Source, payload: bytes) -> Message:
    """The message, of a pod or a group. Raises DecodeError."""
    try:
        return decode(payload, _STREAMS[source])
    except UnknownSchemaError:
        return decode_group(payload, GroupPending) if source == PENDING else decode_group(payload, GroupRanked)


def _by_field(mask: Mask) -> Mapping[str, Callable[[str], str]]:
    """How the texts of a field are masked; unlisted fields hold names."""
    kinds: Mapping[Callable[[str], str], str] = {
        mask.attempt: "attempt of_group begun_after",
        mask.value: "labels match_labels node_selector selector values value domain",
        mask.text: "message reason error details queue stage note problems",
        mask.time: "creation_timestamp deletion_timestamp start_time last_transition_time bound_at disrupted_pods "
        "allocation_timestamp created until",
        mask.quantity: "requests min_resources limits overhead allocatable capacity maximum_volume_size "
        "consumed_capacity",
        mask.expression: "expression",
        mask.literal: "string_value version_value",
        mask.version: "resource_version resource_versions",
        mask.address: "host_ip",
    }
    return {field: masked for masked, fields in kinds.items() for field in fields.split()}
