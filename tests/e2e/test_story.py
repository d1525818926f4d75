"""The same story beside kube-scheduler, on a real API server: the same pods bound, conditions, Events and evictions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harness.worlds.story import Story, differences
from harness.worlds.two_schedulers import berth, kube_scheduler, told

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(900)]

PODS = 60
SLOWER = 6.0
"""Seconds that berth may take longer for an act, on a busy machine: less than a back-off that is waited out (9 s where
a node is added; 0.4 s where the back-off ends early, and kube-scheduler 0.1 s)."""


async def test_berth_and_kube_scheduler_tell_the_same_story(tmp_path: Path):
    with berth(tmp_path) as of_berth, kube_scheduler(tmp_path) as of_kube_scheduler:
        stories = told(of_kube_scheduler, "default-scheduler", Story), told(of_berth, "berth", Story)
        theirs, ours = [story.outcome for story in await asyncio.gather(*stories)]  # most of a story is waiting
    took = [f"{seconds:6.2f} {ours.seconds.get(act, 0):6.2f}  {act}" for act, seconds in theirs.seconds.items()]
    (tmp_path / "seconds.txt").write_text("\n".join(["kube-scheduler, berth, act", *took]))
    assert len({pod for act in theirs.acts.values() for pod in act}) >= PODS
    assert theirs.late == {}, "the story expects what kube-scheduler does not do"
    late = [act for act, seconds in theirs.seconds.items() if ours.seconds.get(act, 0) > seconds + SLOWER]
    assert not late, "\n" + "\n".join(took)
    found = differences(theirs, ours, ("kube-scheduler", "berth"))
    assert not found, "\n" + "\n".join(found)
