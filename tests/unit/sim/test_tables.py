"""Objects as the tables that `kubectl get` prints."""

import json
from datetime import UTC, datetime

import pytest

from berth_sim.apiserver.kinds import NEW_EVENTS, PERSISTENT_VOLUMES, SECRETS, SERVED_KINDS, SERVICES, SimulatedKind
from berth_sim.apiserver.store import StoredObject
from berth_sim.tables import Shown

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
METADATA = {"name": "web", "namespace": "default", "creationTimestamp": "2026-01-02T03:03:05Z", "resourceVersion": "7"}


def table(kind: SimulatedKind, part: str = "", **members: object) -> dict:
    stored = StoredObject(kind, ("default", "web"), 7, {"metadata": METADATA, **members})
    return json.loads(Shown(kind, NOW, part).encoded([stored], 7))


def cells(kind: SimulatedKind, **members: object) -> dict[str, object]:
    made = table(kind, **members)
    return dict(zip((each["name"] for each in made["columnDefinitions"]), made["rows"][0]["cells"], strict=True))


def test_a_service_has_its_ports_and_selector():
    spec = {
        "ports": [{"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}],
        "selector": {"b": "1", "a": "2"},
    }
    shown = cells(SERVICES, spec=spec)
    assert (shown["Type"], shown["Port(s)"], shown["Selector"]) == ("ClusterIP", "80/TCP,53/UDP", "a=2,b=1")


def test_a_secret_has_the_number_of_its_entries():
    assert cells(SECRETS, type="kubernetes.io/tls", data={"a": "", "b": ""})["Data"] == "2"


def test_a_volume_has_its_claim_and_modes():
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce", "Odd"], "claimRef": {"name": "a"}}
    shown = cells(PERSISTENT_VOLUMES, spec=spec)
    assert (shown["Capacity"], shown["Access Modes"], shown["Claim"]) == ("1Gi", "RWO,Odd", "/a")


@pytest.mark.parametrize(
    ("part", "members"),
    [
        ("Object", {"metadata", "kind", "apiVersion", "regarding"}),
        ("", {"metadata", "kind", "apiVersion"}),
        ("None", None),
    ],
)
def test_a_row_has_as_much_of_its_object_as_the_request_asks_for(part: str, members: set[str] | None):
    row = table(NEW_EVENTS, part, involvedObject={"kind": "Pod", "name": "web"})["rows"][0]
    assert row["cells"][3] == "pod/web"
    assert (set(row["object"]) if "object" in row else None) == members


def test_a_watched_event_of_the_newer_kind_has_its_object_in_the_table():
    shown = {"metadata": METADATA, "regarding": {"kind": "Pod", "name": "web"}}
    line = json.dumps({"type": "ADDED", "object": shown}).encode()
    (watched,) = Shown(NEW_EVENTS, NOW, "").watched(line).splitlines()
    assert json.loads(watched)["object"]["rows"][0]["cells"][3] == "pod/web"


@pytest.mark.parametrize("odd", [None, 7, "x", [], [1], {"a": 1}, {"ports": "x", "containers": 3, "template": []}])
@pytest.mark.parametrize("kind", SERVED_KINDS, ids=lambda kind: f"{kind.plural}.{kind.group}")
def test_values_of_any_type_make_a_table(kind: SimulatedKind, odd: object):
    """Kinds of clients' objects are not all validated: a cell that cannot be made says so."""
    made = table(kind, spec=odd, status=odd, data=odd, involvedObject=odd, type=odd, value=odd)
    assert len(made["rows"][0]["cells"]) == len(made["columnDefinitions"])
