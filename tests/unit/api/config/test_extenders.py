"""Extenders in the file: kube-scheduler's checks, their order, and what the scheduler leaves to them."""

import base64
from datetime import timedelta

import msgspec
import pytest
import yaml

from berth.api.config.encode import as_document, digests
from berth.api.config.extenders import shown_url
from berth.api.config.load import ConfigurationError, load
from berth.api.config.presets import DEFAULT_NAME
from berth.plugins.registry import BUILT_IN
from berth.settings.presets import gates_for, preset

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
DEFAULT = preset(DEFAULT_NAME).all_plugins(gates_for(DEFAULT_NAME, ""))
URL = "http://h:8888/x"


def loaded(*extenders: dict, profiles: list | None = None):
    document = {"extenders": list(extenders), **({"profiles": profiles} if profiles else {})}
    return load(HEAD + yaml.safe_dump(document), known=BUILT_IN, preset=DEFAULT)


def problems(*extenders: dict) -> list[str]:
    with pytest.raises(ConfigurationError) as error:
        loaded(*extenders)
    return list(error.value.problems)


@pytest.mark.parametrize(
    ("extender", "problem"),
    [
        pytest.param({}, "extenders[0].urlPrefix: required", id="no URL"),
        pytest.param({"urlPrefix": "h:80"}, "urlPrefix: want a URL such as http", id="no scheme"),
        pytest.param({"urlPrefix": "http:///x"}, "urlPrefix: want a URL such as http", id="no host"),
        pytest.param({"urlPrefix": "http://h:x/"}, "urlPrefix: want a URL such as http", id="no port"),
        pytest.param({"urlPrefix": "ftp://u:secret@h/"}, "got 'ftp://h/'", id="another scheme, password not shown"),
        pytest.param({"prioritizeVerb": "p"}, "weight: want 1..2147483647 beside prioritizeVerb, got 0", id="weight"),
        pytest.param({"prioritizeVerb": "p", "weight": -1}, "got -1", id="a negative weight"),
        pytest.param({"managedResources": [{"name": "cpu"}]}, "managedResources[0].name: want an ext", id="cpu"),
        pytest.param({"managedResources": [{"name": "a_b/gpu"}]}, "managedResources[0].name: want an ext", id="prefix"),
        pytest.param({"managedResources": [{"name": "a/-"}]}, "managedResources[0].name: want an ext", id="name"),
        pytest.param({"managedResources": [{"name": "kubernetes.io/a"}]}, "want an extended resource", id="native"),
        pytest.param({"managedResources": [{"name": "requests.a/b"}]}, "want an extended resource", id="a quota's"),
        pytest.param(
            {"managedResources": [{"name": "a/b"}, {"name": "a/b"}]}, "want it once in all extenders", id="twice"
        ),
        pytest.param({"httpTimeout": "2m"}, "httpTimeout: want 1m0s at most, got 2m0s", id="timeout"),
        pytest.param({"tlsConfig": {"insecure": True, "caFile": "x"}}, "want insecure or a CA, got both", id="CA"),
        pytest.param({"tlsConfig": {"keyFile": "x"}}, "want a certificate and its key, got one of them", id="key"),
        pytest.param({"tlsConfig": {"caData": "!"}}, "tlsConfig.caData: want base64", id="base64"),
        pytest.param({"tlsConfig": {"caPath": "!"}}, "tlsConfig.caPath: unknown field", id="unknown"),
    ],
)
def test_what_cannot_be_used_is_refused(extender, problem):
    given = extender if not extender or "urlPrefix" in extender else {"urlPrefix": URL, **extender}
    assert any(problem in each for each in problems(given))


def test_a_resource_has_one_extender():
    one = {"urlPrefix": URL, "managedResources": [{"name": "a/b"}]}
    assert problems(one, one) == [
        "extenders[1].managedResources[0].name: want it once in all extenders, got 'a/b' again"
    ]


def test_one_extender_binds_at_most():
    one = {"urlPrefix": URL, "bindVerb": "bind"}
    assert loaded(one, {"urlPrefix": URL}).extenders[0].bind_verb == "bind"
    assert problems(one, one) == ["extenders: want one with bindVerb at most, got 2"]


def test_defaults_are_kube_schedulers_and_those_that_may_be_ignored_are_asked_last():
    first, second = loaded({"urlPrefix": "http://a", "ignorable": True}, {"urlPrefix": "http://b"}).extenders
    assert (first.name, second.name) == ("http://b", "http://a")
    assert first.timeout == timedelta(seconds=5)
    assert not first.node_cache_capable


def test_https_without_an_authority_is_not_verified_as_in_kube_scheduler():
    with_ca, without = loaded(
        {"urlPrefix": "https://a", "enableHTTPS": True, "tlsConfig": {"caFile": "/ca"}},
        {"urlPrefix": "https://b", "enableHTTPS": True},
    ).extenders
    assert (with_ca.tls.insecure, without.tls.insecure) == (False, True)


def test_what_extenders_take_care_of_is_ignored_in_every_profile():
    fit = {"name": "NodeResourcesFit", "args": {"ignoredResources": ["c/d"]}}
    managed = [{"name": "a/b", "ignoredByScheduler": True}, {"name": "e/f"}]
    configuration = loaded(
        {"urlPrefix": URL, "managedResources": managed},
        profiles=[{"schedulerName": "a"}, {"schedulerName": "b", "pluginConfig": [fit]}],
    )
    ignored = [profile.args["NodeResourcesFit"].ignored_resources for profile in configuration.profiles]
    assert ignored == [["a/b"], ["c/d", "a/b"]]


def test_what_is_shown_has_no_password_and_no_token():
    assert shown_url("https://u:p%40@h:1/x?token=t#f") == "https://h:1/x"
    (extender,) = loaded({"urlPrefix": "http://u:secret@h/x", "tlsConfig": keys()}).extenders
    assert "secret" not in repr(extender)
    assert b"the key" in extender.tls.key_pem


def keys() -> dict:
    return {
        "certData": base64.b64encode(b"the certificate").decode(),
        "keyData": base64.b64encode(b"the key: secret").decode(),
    }


def test_written_out_and_read_again_it_means_the_same():
    managed = [{"name": "a/b", "ignoredByScheduler": True}]
    one = {"urlPrefix": URL, "filterVerb": "f", "prioritizeVerb": "p", "weight": 3, "bindVerb": "b", "preemptVerb": "e"}
    before = loaded(
        {**one, "managedResources": managed, "tlsConfig": keys(), "ignorable": True, "httpTimeout": "1500ms"}
    )
    again = load(msgspec.json.encode(as_document(before)).decode(), known=BUILT_IN, preset=DEFAULT)
    assert again.extenders == before.extenders
    assert as_document(again) == as_document(before)
    assert digests(before).settings == digests(again).settings != digests(loaded({"urlPrefix": URL})).settings
