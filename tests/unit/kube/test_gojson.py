"""Objects that kube-apiserver takes and msgspec does not read keep no other object from being read."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from berth.api.kinds import (
    COSCHEDULING_POD_GROUP,
    DEVICE_CLASS,
    POD,
    POD_GROUP,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    Kind,
)
from berth.api.podgroups import CoschedulingPodGroup, UpstreamPodGroup, of_coscheduling, of_upstream
from berth.kube.gojson import MOST_NESTED, readable
from berth.kube.listwatch import ObjectDecoder, Undecodable, Upserted

DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000  # later Pythons read more levels than 3.11
HALF = r'{"text":"a\\\ud800b"}'
PAIR = r'{"text":"\ud83d\ude00 \\ud800"}'


def body(kind: str, name: str, **parts: object) -> str:
    metadata = {"name": name, "namespace": "shop", "uid": f"uid-{name}", "resourceVersion": "7"}
    return json.dumps({"kind": kind, "metadata": metadata, **parts})


def claim(parameters: str, name: str = "c") -> str:
    """A claim with a device, and parameters as its owner wrote them."""
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    config = [{"opaque": {"driver": "d", "parameters": "@"}}]
    results = [{"request": "r", "driver": "d", "pool": "p", "device": "x"}]
    spec = {"devices": {"requests": [request], "config": config}}
    status = {"allocation": {"devices": {"results": results}}}
    return body("ResourceClaim", name, spec=spec, status=status).replace('"@"', parameters)


def page(*items: str) -> bytes:
    return f'{{"metadata":{{"resourceVersion":"9"}},"items":[{",".join(items)}]}}'.encode()


def listed(kind: Kind, *items: str) -> list[object]:
    decoder = ObjectDecoder(kind)
    objects, undecodable = decoder.several(decoder.page(page(*items)).items)
    assert undecodable == []
    return objects


def test_a_pod_with_managed_fields_of_any_depth_is_listed_and_watched_beside_others():
    fields = f'"managedFields":[{{"fieldsV1":{DEEP}}}],"name":'
    odd = body("Pod", "odd", spec={"nodeName": "n"}).replace('"name":', fields)
    assert [pod.metadata.name for pod in listed(POD, odd, body("Pod", "web"))] == ["odd", "web"]
    event = ObjectDecoder(POD).event(f'{{"type":"ADDED","object":{odd}}}'.encode())
    assert isinstance(event, Upserted)
    assert event.object.spec.node_name == "n"


@pytest.mark.parametrize("parameters", [DEEP, HALF])
def test_a_claim_whose_parameters_cannot_be_read_says_so_and_keeps_its_devices(parameters: str):
    odd, web = listed(RESOURCE_CLAIM, claim(parameters), claim(PAIR, "web"))
    event = ObjectDecoder(RESOURCE_CLAIM).event(f'{{"type":"MODIFIED","object":{claim(parameters)}}}'.encode())
    assert isinstance(event, Upserted)
    for one in (odd, event.object):
        assert isinstance(one, ResourceClaim)
        assert one.spec.left_out.startswith("cannot be read: its parameters are nested more than")
        assert [each.key for each in one.status.allocation.devices.results] == ["d/p/x"]
    assert isinstance(web, ResourceClaim)
    assert (web.spec.left_out, bytes(web.spec.devices.config[0].opaque.parameters)) == ("", PAIR.encode())


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (RESOURCE_CLAIM, claim("1").replace('"requests": [', '"requests": [7, ')),
        (DEVICE_CLASS, body("DeviceClass", "gpu", spec={"selectors": 7})),
        (RESOURCE_SLICE, body("ResourceSlice", "s", spec={"driver": "d", "pool": {"name": "p"}, "devices": [7]})),
    ],
)
def test_an_object_of_another_shape_says_what_is_wrong(kind: Kind, text: str):
    [odd] = listed(kind, text)
    assert isinstance(odd, ResourceClaim | DeviceClass | ResourceSlice)
    assert re.match(r"cannot be read: Expected `\w+( \| null)?`, got `int` - at `\$\.spec\.\w+", odd.spec.left_out)
    if isinstance(odd, ResourceSlice):
        assert (odd.spec.driver, odd.spec.pool.name) == ("d", "p")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        pytest.param('{"minMember": "many"}', "Expected `int | null`, got `str` - at `$.spec.minMember`", id="a text"),
        pytest.param('{"minMember": 9223372036854775807}', "Expected `int` <= 2147483647", id="above int32"),
        pytest.param(f'{{"minMember": 1{"0" * 5000}}}', "Integer value out of range", id="5,000 digits"),
        pytest.param('{"minMember": 2.5}', "Expected `int | null`, got `float`", id="a half"),
        pytest.param('{"minMember": "\\u0000"}', "Expected `int | null`, got `str`", id="NUL"),
        pytest.param(f'{{"minMember": {DEEP}}}', "Expected `int | null`, got `object`", id="deep"),
        pytest.param(f'{{"minMember": {HALF}}}', "Expected `int | null`, got `", id="half a pair"),
        pytest.param("[]", "Expected `object`, got `array` - at `$.spec`", id="a list"),
    ],
)
def test_a_podgroup_that_cannot_be_read_says_what_is_wrong_beside_others(spec: str, reason: str):
    text = '{"metadata":{"name":"odd","namespace":"n","uid":"u","resourceVersion":"5"},"spec":%s}'
    odd, web = listed(COSCHEDULING_POD_GROUP, text % spec, text % '{"minMember": 3}')
    event = ObjectDecoder(COSCHEDULING_POD_GROUP).event(f'{{"type":"MODIFIED","object":{text % spec}}}'.encode())
    assert isinstance(event, Upserted)
    for one in (odd, event.object):
        assert isinstance(one, CoschedulingPodGroup)
        [problem] = of_coscheduling(one).problems
        assert problem.startswith(f"the PodGroup cannot be read: {reason}"), problem
        assert len(problem) < 400
    assert isinstance(web, CoschedulingPodGroup)
    assert (of_coscheduling(web).minimum, of_coscheduling(web).problems) == (3, ())


def test_a_podgroup_of_upstream_that_cannot_be_read_has_one_problem():
    [odd] = listed(POD_GROUP, '{"metadata":{"name":"odd","uid":"u"},"spec":{"schedulingPolicy":{"gang":7}}}')
    assert isinstance(odd, UpstreamPodGroup)
    [problem] = of_upstream(odd).problems
    assert problem.startswith("the PodGroup cannot be read: Expected `object | null`, got `int`"), problem


def test_an_object_of_which_nothing_can_be_read_is_undecodable():
    assert isinstance(ObjectDecoder(RESOURCE_CLAIM).one(b'{"metadata":{"name":7}}'), Undecodable)
    assert isinstance(ObjectDecoder(POD).one(b'{"metadata":{"name":"x"},"spec":7}'), Undecodable)


texts = st.text(st.sampled_from('ab"\\[]{}u\ud800\udc00\U0001f600'), max_size=12)
parts = texts | st.integers()
values = st.recursive(parts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=30)


@given(value=values, depth=st.integers(0, 8))
def test_what_is_readable_stays_as_it_is_beside_what_is_cut(value: object, depth: int):
    deep = depth + MOST_NESTED
    data = f'{{"kept":{json.dumps(value)},"cut":{"[" * deep}1{"]" * deep},"last":{json.dumps(depth)}}}'.encode()
    read = json.loads(readable(data))
    half = re.compile("[\ud800-\udfff]")
    if not half.search(json.dumps(value, ensure_ascii=False)):
        assert read["kept"] == value
    assert read["last"] == depth
    assert not half.search(json.dumps(read, ensure_ascii=False))
