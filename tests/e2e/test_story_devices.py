"""A story about devices beside kube-scheduler, on a real API server: the same pods bound, and the same claims."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harness.worlds.story import differences
from harness.worlds.story_devices import DeviceStory, differences_of_claims
from harness.worlds.two_schedulers import berth, kube_scheduler, told

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(900)]

PODS = 40


async def test_berth_and_kube_scheduler_tell_the_same_story_about_devices(tmp_path: Path):
    with berth(tmp_path) as of_berth, kube_scheduler(tmp_path) as of_kube_scheduler:
        stories = told(of_kube_scheduler, "default-scheduler", DeviceStory), told(of_berth, "berth", DeviceStory)
        theirs, ours = await asyncio.gather(*stories)  # most of a story is waiting
    assert len({pod for act in theirs.outcome.acts.values() for pod in act}) >= PODS
    assert theirs.outcome.late == {}, "the story expects what kube-scheduler does not do"
    names = ("kube-scheduler", "berth")
    found = differences(theirs.outcome, ours.outcome, names) + differences_of_claims(theirs, ours, names)
    assert not found, "\n" + "\n".join(found)
