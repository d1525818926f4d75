"""The formats of identities, times and amounts, and the parsing of pod names."""

import pytest

from berth.exits import UsageError
from berth.settings.settings import short_identity
from berth_cli.options import parse_pod
from berth_cli.rendering import amount_of_bytes, duration, per_second, short_attempt

UUID = "08d73f09-8861-42e0-81fd-655f5624f11e"


@pytest.mark.parametrize(
    ("identity", "shown"),
    [
        pytest.param(f"host_{UUID}_scorer-2", "scorer-2", id="of berth up"),
        pytest.param(f"my_host.example_{UUID}_watcher", "watcher", id="of a host with an underscore"),
        pytest.param(f"host_{UUID}", "host", id="of a service on its own"),
        pytest.param("scorer-a", "scorer-a", id="given by the user"),
        pytest.param("", "", id="none"),
    ],
)
def test_an_identity_is_short(identity, shown):
    assert short_identity(identity) == shown


def test_an_attempt_is_short():
    assert short_attempt(f"{UUID}.3.12") == "08d7...3.12"
    assert short_attempt("u.3.12") == "u.3.12"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0.0 ms"), (0.0031, "3.1 ms"), (4.24, "4.2 s"), (125, "2 min 5 s"), (3780, "1 h 3 min")],
)
def test_a_duration_has_a_suitable_unit(seconds, shown):
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("amount", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (12_300_000, "12 MB"), (5e18, "5000 PB")]
)
def test_bytes_have_a_suitable_unit(amount, shown):
    assert amount_of_bytes(amount) == shown
    assert per_second(amount) == f"{shown}/s"


def test_unknown_traffic_is_empty():
    assert per_second(None) == ""


def test_a_pod_without_a_namespace_is_in_the_default_one():
    assert str(parse_pod("kube-system/dns")) == "kube-system/dns"
    assert str(parse_pod("web-0")) == "default/web-0"
    assert parse_pod("web.0").filter("*") == "berth.*.*.default.web.0"


@pytest.mark.parametrize("text", ["", "/", "a/", "/a", "a/b/c"])
def test_an_invalid_pod_name_is_an_error(text):
    with pytest.raises(UsageError, match="want NAMESPACE/NAME"):
        parse_pod(text)
