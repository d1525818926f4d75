"""The configuration in a recording: the same plugins and arguments again, and no secret."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from berth.api.config.configuration import (
    ClientConnection,
    ExtenderConfiguration,
    ExtenderTls,
    KubeSchedulerConfiguration,
)
from berth.api.config.encode import digests
from berth.profiles.configuration import profiles_of, read_configuration
from berth.settings.presets import presets
from berth_cli.recording.configuration import configuration_of, recorded_configuration
from berth_cli.recording.file import Header, RecordingError, header

SECRET = "hunter2"  # noqa: S105 - found nowhere


def a_header(configuration: KubeSchedulerConfiguration, **members: Any) -> Header:
    document = recorded_configuration(configuration)
    found = header(
        at=datetime(2026, 1, 1, tzinfo=UTC),
        bus_id="bus",
        config=configuration.digest,
        release=configuration.release,
        configuration=document,
    )
    return msgspec.structs.replace(found, **members)


@pytest.mark.parametrize("provider", presets())
def test_each_preset_is_read_again_as_it_was(provider: str):
    configuration = read_configuration(None, provider=provider)
    again = configuration_of(a_header(configuration), "r")
    assert (again.digest, again.release) == (configuration.digest, configuration.release)
    assert digests(again).profiles == digests(configuration).profiles
    assert profiles_of(again).keys() == {"berth"}


def test_what_is_secret_or_of_one_machine_is_left_out():
    extender = ExtenderConfiguration(
        url_prefix=f"https://user:{SECRET}@extender.example/x",
        name="https://extender.example/x",
        filter_verb="filter",
        tls=ExtenderTls(key_pem=SECRET.encode(), cert_pem=b"public", key_file=f"/{SECRET}"),
    )
    configuration = replace(
        read_configuration(None), extenders=(extender,), client_connection=ClientConnection(kubeconfig=f"/{SECRET}")
    )
    written = msgspec.json.encode(recorded_configuration(configuration)).decode()
    assert SECRET not in written
    assert "aHVudGVyMg" not in written  # the same in base64
    assert "https://extender.example/x" in written


def test_another_release_is_named():
    found = a_header(read_configuration(None), release="1.99")
    with pytest.raises(RecordingError, match=r"r: its plugins are of release '1.99', and here are 1.36, 1.18"):
        configuration_of(found, "r")


def test_a_plugin_that_is_not_installed_is_named_in_a_line():
    document = recorded_configuration(read_configuration(None))
    document["profiles"][0]["plugins"]["score"]["enabled"].append({"name": "Elsewhere", "weight": 1})
    with pytest.raises(RecordingError) as caught:
        configuration_of(msgspec.structs.replace(a_header(read_configuration(None)), configuration=document), "r")
    assert "Elsewhere" in str(caught.value)
    assert "the configuration in r" in str(caught.value)
    assert "\n" not in str(caught.value)
