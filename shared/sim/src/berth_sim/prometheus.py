"""Made-up traffic and load of the simulated nodes, as a Prometheus server and as node exporters.

``<cluster>/prometheus`` answers exactly the queries that the metrics collector sends; any other gets a 400. Every node
has one device, eth0, and a link of 1 Gbit/s. Its traffic and its use of CPU and memory are its own, which rise and
fall, plus its pods'.

``<cluster>/sim/exporters`` is for a real Prometheus:

    http_sd_configs: [{url: http://<cluster>/sim/exporters}]

It lists one target per node. The counters grow by the same rates.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from berth_sim.apiserver.kinds import NODES, PODS
from berth_sim.apiserver.store import Store

PREFIX: Final = "/prometheus"

PATH: Final = f"{PREFIX}/api/v1/query"

SCRAPE_SECONDS: Final = 5.0

LINK_BYTES: Final = 125e6  # 1 Gbit/s

OWN_BYTES: Final = 60e6  # bytes per second of a node without pods, in each direction, at its peak

POD_BYTES: Final = 0.5e6  # bytes per second of one pod

OWN_CORES: Final = 1.0  # cores that a node without pods uses, at its peak

POD_CORES: Final = 0.1  # cores that one pod uses

OWN_MEMORY: Final = 2.0**30  # bytes that a node without pods uses

POD_MEMORY: Final = 2.0**27  # bytes that one pod uses

TOTAL_MEMORY: Final = 2.0**36  # bytes of a node

PERIOD_SECONDS: Final = 600.0  # period in which what is a node's own rises and falls

DEVICE: Final = "eth0"

_JOB: Final = "node-exporter"

FLAGS: Final = 0x1003  # of the device: up, broadcast, multicast; not part of a bond

NAMED_BY_UDEV: Final = 4.0  # name_assign_type: renamed, as cards are


Labels = Mapping[str, str]

Asked = re.Match[str]

Rows = Iterable[tuple[Labels, float]]


class Moment:
    """The made-up traffic at one time: `now` in Unix seconds, `pods` by node."""

    def __init__(self, now: float, nodes: Iterable[str], pods: Mapping[str, int]) -> None:
        self.now = now
        self.nodes = tuple(nodes)
        self._pods = pods

    @property
    def scraped_at(self) -> float:
        """The time of all nodes' last scrape."""
        return math.floor(self.now / SCRAPE_SECONDS) * SCRAPE_SECONDS

    def rate(self, node: str, direction: str) -> float:
        """Bytes per second: the node's own, by its name and the time, plus its pods'."""
        return min(LINK_BYTES, OWN_BYTES * self._own(node, direction) + POD_BYTES * self._pods.get(node, 0))

    def cores(self, node: str) -> float:
        """Cores that are used."""
        return OWN_CORES * self._own(node, "cpu") + POD_CORES * self._pods.get(node, 0)

    def memory(self, node: str) -> float:
        """Bytes that are used."""
        return min(TOTAL_MEMORY, OWN_MEMORY + POD_MEMORY * self._pods.get(node, 0))

    def _own(self, node: str, what: str) -> float:
        """A share of what is the node's own at most."""
        own = int.from_bytes(hashlib.blake2b(f"{node} {what}".encode(), digest_size=4).digest()) / 2**32
        return own * (0.75 + 0.25 * math.sin(2 * math.pi * (self.now / PERIOD_SECONDS + own)))


class SimulatedPrometheus:
    """Answers instant queries about the nodes of a store; ``clock`` is the time in the cluster."""

    def __init__(self, store: Store, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock

    def respond(self, query: str) -> web.Response:
        found = next(((rows, asked) for form, rows in _FORMS if (asked := form.fullmatch(query))), None)
        if found is None:
            error = f"the simulated Prometheus answers berth's own queries only, got {query!r}"
            return _json({"status": "error", "errorType": "bad_data", "error": error}, HTTPStatus.BAD_REQUEST)
        (rows, asked), moment = found, self.moment()
        matchers = asked.groupdict().get("matchers")
        result = [
            {"metric": labels, "value": [moment.now, f"{value:.17g}"]}
            for labels, value in (rows(moment, asked) if moment.nodes else ())
            if rows is _interval or _selects(matchers, labels)
        ]
        return _json({"status": "success", "data": {"resultType": "vector", "result": result}})

    def now(self) -> float:
        return self._clock().timestamp()

    def moment(self) -> Moment:
        pods = Counter(pod.value["spec"].get("nodeName", "") for pod in self._store.table(PODS).items.values())
        nodes = (name for _, name in self._store.table(NODES).items)
        return Moment(self.now(), nodes, pods)


def _each(value: Callable[[Moment, Asked, str], float]) -> Callable[[Moment, Asked], Rows]:
    return lambda moment, asked: ((_series(node), value(moment, asked, node)) for node in moment.nodes)


def _each_node(value: Callable[[Moment, str], float]) -> Callable[[Moment, Asked], Rows]:
    return lambda moment, _asked: ((_exporter(node), value(moment, node)) for node in moment.nodes)


def _exporter(node: str) -> dict[str, str]:
    return {"instance": f"{node}:9100", "job": _JOB, "node": node}


def _series(node: str) -> Labels:
    return {**_exporter(node), "device": DEVICE}


def _unames(moment: Moment, _asked: Asked) -> Rows:
    for node in moment.nodes:
        yield {**_exporter(node), "nodename": node}, moment.scraped_at


def _info(moment: Moment, _asked: Asked) -> Rows:
    return (({**_series(node), "address": _address(node), "operstate": "up"}, 1.0) for node in moment.nodes)


def _address(node: str) -> str:
    return ":".join(f"{byte:02x}" for byte in (0x02, *hashlib.blake2b(node.encode(), digest_size=5).digest()))


def _none(_moment: Moment, _asked: Asked) -> Rows:
    return ()


def _interval(_moment: Moment, _asked: Asked) -> Rows:
    return [({"job": _JOB}, SCRAPE_SECONDS)]


_MATCHER = r'\w+(?:=|!=|=~|!~)"(?:[^"\\]|\\.)*"'
_SERIES = rf"(?:\{{(?P<matchers>{_MATCHER}(?:,{_MATCHER})*)\}})?"

_COUNTER = rf"node_network_(?P<direction>receive|transmit)_bytes_total{_SERIES}"

_OVER = r"(?P<seconds>\d+)s"

_AGAIN = r"node_network_receive_bytes_total(?:\{[^}]*\})?"

_TOTAL = rf"node_memory_MemTotal_bytes{_SERIES}"

_TOTAL_AGAIN = r"node_memory_MemTotal_bytes(?:\{[^}]*\})?"

_ORDINARY = rf"\({_TOTAL} - node_memory_Hugetlb_bytes(?:\{{[^}}]*\}})? or {_TOTAL_AGAIN}\)"

_AVAILABLE = rf"node_memory_MemAvailable_bytes(?:\{{[^}}]*\}})?\[{_OVER}\]"

# The number of scrapes, or the time of the first.
_SCRAPES_OF = r"(?:count_over_time\(|min_over_time\(timestamp\()"

_IN_RANGE = rf"\)?\[{_OVER}(?::\d+s)?\]\)"

_GAPPED = (
    r"timestamp\({series} offset \d+s\) and count_over_time\({series}\[\d+s\]\) < [\d.]+"
    r" and count_over_time\({series}\[\d+s\] offset \d+s\)"
)

_CPU = rf"node_cpu_seconds_total{_SERIES}"

_CPU_POINTS = rf"sum without \(cpu, mode\) \(irate\({_CPU}\[\d+s\]\)\)\[{_OVER}:\d+s\]"


_FORMS: Final[Sequence[tuple[re.Pattern[str], Callable[[Moment, Asked], Rows]]]] = (
    (
        re.compile(rf"rate\({_COUNTER}\[{_OVER}\]\)"),
        _each(lambda moment, asked, node: moment.rate(node, asked["direction"])),
    ),
    (
        re.compile(
            rf"{_SCRAPES_OF}{_COUNTER}{_IN_RANGE}"
            rf" unless \({_AGAIN} offset \d+s and count_over_time\({_AGAIN}\[\d+s\] offset \d+s\)\)"
        ),
        _none,  # every series is as old as the cluster
    ),
    (re.compile(rf"timestamp\({_COUNTER}\) - {_GAPPED.format(series=_AGAIN)}"), _none),  # and no scrape fails
    (
        re.compile(rf"timestamp\({_COUNTER}\)"),
        _each(lambda moment, _asked, _node: moment.scraped_at),
    ),
    # Load changes slowly: percentiles are what is used now, and it deviates by nothing.
    (re.compile(rf"sum without \(cpu, mode\) \(rate\({_CPU}\[{_OVER}\]\)\)"), _each_node(Moment.cores)),
    (re.compile(rf"quantile_over_time\([\d.]+, {_CPU_POINTS}\)"), _each_node(Moment.cores)),
    (re.compile(rf"stddev_over_time\({_CPU_POINTS}\)"), _each_node(lambda *_: 0.0)),
    (re.compile(rf"{_ORDINARY} - avg_over_time\({_AVAILABLE}\)"), _each_node(Moment.memory)),
    (re.compile(rf"{_ORDINARY} - quantile_over_time\([\d.]+, {_AVAILABLE}\)"), _each_node(Moment.memory)),
    (
        re.compile(rf"stddev_over_time\(node_memory_MemAvailable_bytes{_SERIES}\[{_OVER}\]\)"),
        _each_node(lambda *_: 0.0),
    ),
    (
        re.compile(
            rf"{_SCRAPES_OF}{_TOTAL}{_IN_RANGE}"
            rf" unless \({_TOTAL_AGAIN} offset \d+s and count_over_time\({_TOTAL_AGAIN}\[\d+s\] offset \d+s\)\)"
        ),
        _none,
    ),
    (re.compile(rf"timestamp\({_TOTAL}\) - {_GAPPED.format(series=_TOTAL_AGAIN)}"), _none),
    (re.compile(rf"timestamp\({_TOTAL}\)"), _each_node(lambda moment, _node: moment.scraped_at)),
    (
        re.compile(
            rf"quantile by \(job\) \(0\.5, \(timestamp\({_TOTAL}\) - timestamp\({_TOTAL_AGAIN} offset \d+s\)\)"
            rf" / count_over_time\({_TOTAL_AGAIN}\[{_OVER}\]\)\)"
        ),
        _interval,
    ),
    (re.compile(rf"node_network_flags{_SERIES}"), _each(lambda *_: float(FLAGS))),
    (re.compile(rf"node_network_speed_bytes{_SERIES}"), _each(lambda *_: LINK_BYTES)),
    (re.compile(rf"node_network_name_assign_type{_SERIES}"), _each(lambda *_: NAMED_BY_UDEV)),
    (re.compile(rf"node_network_info{_SERIES}"), _info),
    (re.compile(rf"node_network_iface_link{_SERIES} != node_network_iface_id(?:\{{[^}}]*\}})?"), _none),
    (re.compile(r"node_bonding_slaves(?:\{[^}]*\})?"), _none),
    (re.compile(rf"timestamp\(node_uname_info{_SERIES}\)"), _unames),
    (
        re.compile(
            rf"quantile by \(job\) \(0\.5, \(timestamp\({_COUNTER}\) - timestamp\({_AGAIN} offset \d+s\)\)"
            rf" / count_over_time\({_AGAIN}\[{_OVER}\]\)\)"
        ),
        _interval,
    ),
)


def _selects(matchers: str | None, labels: Labels) -> bool:
    """Whether the series is one of the selector's. PromQL anchors expressions; a missing label is empty."""
    for label, sign, text in re.findall(r'(\w+)(=~|!~|!=|=)("(?:[^"\\]|\\.)*")', matchers or ""):
        wanted, value = msgspec.json.decode(text, type=str), labels.get(label, "")
        matches = re.fullmatch(wanted, value) is not None if "~" in sign else wanted == value
        if matches == sign.startswith("!"):
            return False
    return True


def _json(document: object, code: int = HTTPStatus.OK) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), status=code, content_type="application/json")


EXPORTERS_PATH: Final = "/sim/exporters"

PORT: Final = 9100  # in the name of an instance; the exporters do not listen there

MOMENT_SECONDS: Final = 1.0  # seconds that pod counts are reused, because all nodes are scraped in a row

_CONTENT_TYPE: Final = "text/plain"


@dataclass(slots=True, kw_only=True)
class Counters:
    """The counters of one node's device, in bytes, and of its processors, in seconds, up to `at` (Unix seconds)."""

    at: float
    received: float = 0.0
    transmitted: float = 0.0
    busy: float = 0.0

    def grow(self, moment: Moment, node: str, until: float) -> None:
        elapsed = max(0.0, until - self.at)
        self.received += moment.rate(node, "receive") * elapsed
        self.transmitted += moment.rate(node, "transmit") * elapsed
        self.busy += moment.cores(node) * elapsed
        self.at = until


class SimulatedExporters:
    """One exporter per node; counters start from 0 at the first scrape, as after a reboot."""

    def __init__(self, traffic: SimulatedPrometheus) -> None:
        self._traffic = traffic
        self._counters: dict[str, Counters] = {}
        self._moment: Moment | None = None

    def respond(self, request: web.BaseRequest) -> web.Response:
        rest = request.path.removeprefix(EXPORTERS_PATH).strip("/")
        if not rest:
            return web.Response(body=msgspec.json.encode(self._targets(request.host)), content_type="application/json")
        node = rest.removesuffix("/metrics")
        if node not in self._recent().nodes:
            return web.Response(status=HTTPStatus.NOT_FOUND, text=f"there is no node {node!r}\n")
        return web.Response(text="\n".join([*self._lines(node), ""]), content_type=_CONTENT_TYPE)

    def _targets(self, host: str) -> list[dict[str, object]]:
        """The response to Prometheus's HTTP service discovery; `host` is the Host header of its request."""
        return [
            {
                "targets": [host],
                "labels": {
                    "__metrics_path__": f"{EXPORTERS_PATH}/{node}/metrics",
                    "instance": f"{node}:{PORT}",
                    "node": node,
                },
            }
            for node in self._recent().nodes
        ]

    def _lines(self, node: str) -> Iterator[str]:
        moment, now = self._recent(), self._traffic.now()
        counters = self._counters.setdefault(node, Counters(at=now))
        counters.grow(moment, node, now)
        device = f'{{device="{DEVICE}"}}'
        yield f'node_uname_info{{nodename="{node}",sysname="Linux"}} 1'
        yield "# TYPE node_network_receive_bytes_total counter"
        yield f"node_network_receive_bytes_total{device} {counters.received:.0f}"
        yield "# TYPE node_network_transmit_bytes_total counter"
        yield f"node_network_transmit_bytes_total{device} {counters.transmitted:.0f}"
        yield f"node_network_flags{device} {FLAGS}"
        yield f"node_network_speed_bytes{device} {LINK_BYTES:.0f}"
        yield f"node_network_name_assign_type{device} {NAMED_BY_UDEV:.0f}"
        yield f'node_network_info{{device="{DEVICE}",address="{_address(node)}",operstate="up"}} 1'
        yield "# TYPE node_cpu_seconds_total counter"
        yield f'node_cpu_seconds_total{{cpu="0",mode="user"}} {counters.busy:.3f}'
        yield f"node_memory_MemTotal_bytes {TOTAL_MEMORY:.0f}"
        yield f"node_memory_MemAvailable_bytes {TOTAL_MEMORY - moment.memory(node):.0f}"
        yield f"node_network_iface_id{device} 2"
        yield f"node_network_iface_link{device} 2"

    def _recent(self) -> Moment:
        moment = self._moment
        if moment is None or self._traffic.now() - moment.now > MOMENT_SECONDS:
            moment = self._moment = self._traffic.moment()
        return moment
