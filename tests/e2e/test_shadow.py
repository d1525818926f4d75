"""Shadows beside a running pipeline: equal and other configurations, bursts, a NATS server that goes away, the page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest

from berth.bus.connection import Connection
from berth.bus.interface import BusRefusedError, Session
from berth.messages.shadow import ShadowComparison, ShadowFigures
from berth_cli.pipeline.accounts import DOMAIN
from harness.servers.browser import browser, console, opened, severe, shown
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(240)]

NODES = 30
QUIET, BURST = 40, 300
SECONDS = 60.0
HEAD = (
    "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: berth\n"
)
PACKED = f"""{HEAD}\
  plugins: {{multiPoint: {{disabled: [{{name: TaintToleration}}]}}}}
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy: {{type: MostAllocated, resources: [{{name: cpu, weight: 1}}, {{name: memory, weight: 1}}]}}
"""
STARTED = re.compile(r'"health_port":(\d+).*_shadow-(\w+)"')


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthUp]:
    """A pipeline with one live scorer and two shadows: of the same configuration, and of one that packs."""
    folder = tmp_path_factory.mktemp("shadow")
    files = {"same": folder / "same.yaml", "packed": folder / "packed.yaml"}
    files["same"].write_text(HEAD)
    files["packed"].write_text(PACKED)
    shadows = [word for name, file in files.items() for word in ("--shadow", f"{name}={file}")]
    with berth_up("--nodes", NODES, "--config", files["same"], *shadows, folder=folder) as up:
        up.wait_until_ready()
        yield up


@pytest.fixture
async def people(up: BerthUp) -> AsyncIterator[ClusterUser]:
    async with cluster_user(up.kubeconfig) as people:
        yield people


@pytest.fixture
async def looker(up: BerthUp) -> AsyncIterator[Session]:
    session = await up.session()
    yield session
    await session.close()


async def figures(session: Session) -> dict[str, ShadowFigures]:
    said = [each.stats["shadow"] for each in await session.services("berth-shadow")]
    return {each.name: each for each in (msgspec.convert(one, ShadowFigures) for one in said)}


async def both_have(session: Session, count: int) -> dict[str, ShadowFigures]:
    """The numbers of both shadows once they have compared or skipped so many pods."""

    async def told() -> dict[str, ShadowFigures] | None:
        now = await figures(session)
        enough = [each.compared + sum(each.skipped.values()) >= count for each in now.values()]
        return now if len(now) == 2 and all(enough) else None

    return await eventually(told, f"{count} comparisons of both", SECONDS)


async def seen_so_far(session: Session) -> int:
    return max(each.compared + sum(each.skipped.values()) for each in (await figures(session)).values())


def a_pod(people: ClusterUser, name: str, number: int, **spec: object) -> dict[str, object]:
    sizes = ("50m", "100m", "250m")
    return people.pod(name, cpu=sizes[number % len(sizes)], spec={"nodeSelector": {}, **spec})


def metrics(up: BerthUp, shadow: str) -> str:
    ports = {name: port for port, name in STARTED.findall(up.said)}
    with urlopen(f"http://127.0.0.1:{ports[shadow]}/metrics", timeout=10) as answer:
        return answer.read().decode()


async def test_an_equal_configuration_is_equal_for_every_pod_and_another_is_not(up, people, looker):
    heard: list[ShadowComparison] = []
    await looker.subscribe(
        "berth.shadow.>", lambda _, data, __: heard.append(msgspec.json.decode(data, type=ShadowComparison))
    )
    before = await figures(looker)
    for number in range(QUIET):
        await people.create([a_pod(people, f"web-{number}", number)])
        await people.all_bound([f"web-{number}"], SECONDS)
    after = await both_have(looker, await seen_so_far(looker) if before["same"].compared else QUIET)
    assert after["same"].results == {"equal": after["same"].compared}
    assert after["same"].skipped == {}
    assert after["packed"].results["node"] >= QUIET // 2  # on 30 equal nodes: the fullest in place of the emptiest
    assert after["packed"].points_apart > 0
    assert {each.shadow for each in heard} == {"packed"}
    assert {each.outcome for each in heard} == {"bound"}
    assert all(each.live.candidates[0].node != each.own.candidates[0].node for each in heard)
    text = metrics(up, "packed")
    for name in ("comparisons_total", "points_apart_bucket", "ranking_duration_seconds_count", "skipped_total"):
        assert f"berth_shadow_{name}" in text
    counted = re.search(r'^berth_shadow_comparisons_total\{profile="berth",result="node"\} (\S+)$', text, re.MULTILINE)
    assert counted is not None
    assert float(counted[1]) == after["packed"].results["node"]


async def test_a_burst_is_bound_and_every_pod_is_compared_or_counted_as_skipped(people, looker):
    before = await figures(looker)
    await people.create([a_pod(people, f"burst-{number}", number) for number in range(BURST)])
    await people.all_bound([f"burst-{number}" for number in range(BURST)], SECONDS)
    earlier = before["same"].compared + sum(before["same"].skipped.values())
    after = await both_have(looker, earlier + BURST)
    assert after["same"].results == {"equal": after["same"].compared}


async def test_a_taint_that_only_one_of_them_heeds_is_named(people, looker):
    before = await figures(looker)
    await people.add_nodes(1, taints=[{"key": "dedicated", "value": "x", "effect": "NoSchedule"}])
    await people.create([people.pod("for-the-tainted", cpu="50m")])  # which selects the test's node

    async def counted() -> bool:
        now = await figures(looker)
        refused = before["packed"].placed_against.get("TaintToleration", 0)
        is_named = now["packed"].placed_against.get("TaintToleration", 0) > refused
        # A pod that both place may count as the first: the shadow's is then on the tainted node.
        return is_named and now["packed"].results.get("feasible", 0) >= 1

    await eventually(counted, "what the live scorer refuses and the shadow places", SECONDS)


async def test_the_shadows_user_may_neither_rank_nor_take_a_pod_from_live_scorers(up, looker):
    shadow = await up.session("shadow")
    for subject in (
        *(f"berth.{stage}.berth.default.web-0" for stage in ("pending", "ranked", "decision", "dead")),
        *("$KV.cluster.node.evil", "$KV.facts.evil.a", "$KV.control.term.binder"),
    ):
        with pytest.raises(BusRefusedError):
            await shadow.publish(subject, b"{}")
    connection: Connection = shadow._connection
    for request in ("CONSUMER.MSG.NEXT.PENDING.scorer", "DIRECT.GET.PENDING", "CONSUMER.DELETE.PENDING.scorer"):
        with pytest.raises(BusRefusedError, match="give this user the permission"):
            await connection.request(f"$JS.{DOMAIN}.API.{request}", b'{"batch":1}')
    await shadow.close()
    pending = await looker.state("PENDING")
    assert [each.name for each in pending.consumers] == ["scorer"]


async def test_after_nats_was_away_shadows_go_on_comparing(up, people):
    session = await up.session()
    before = await figures(session)
    await session.close()
    up.kill("nats-server")
    await asyncio.to_thread(up.wait_for, lambda: "nats-server" in up.pids, "NATS to be started again")
    names = [f"after-{number}" for number in range(20)]
    await people.create([a_pod(people, name, number) for number, name in enumerate(names)])
    await people.all_bound(names, SECONDS)
    session = await up.session()

    async def goes_on() -> bool:
        now = await figures(session)
        return len(now) == 2 and all(now[name].compared > before[name].compared for name in now)

    more = 0
    while not await goes_on():  # the shadows may have come back after the first pods were ranked
        more += 1
        assert more < 20
        await people.create([a_pod(people, f"more-{more}", more)])
        await people.all_bound([f"more-{more}"], SECONDS)
        await asyncio.sleep(0.5)
    now = await figures(session)
    assert now["same"].results == {"equal": now["same"].compared}
    await session.close()


@pytest.mark.requires("chromium")
async def test_the_page_shows_shadows_and_both_rankings_of_a_difference(up, people, tmp_path: Path):
    with (
        console("--nats", up.nats, folder=tmp_path, environment={"TMPDIR": str(up.temporary)}) as page,
        browser() as driver,
    ):
        driver.set_script_timeout(60)
        await asyncio.to_thread(opened, driver, f"{page.url}#/shadow")
        await asyncio.to_thread(shown, driver, ".shadow", r"same.*100 % of .* pods as live")
        await people.create([a_pod(people, f"page-{number}", number) for number in range(10)])
        await people.all_bound([f"page-{number}" for number in range(10)], SECONDS)
        await asyncio.to_thread(shown, driver, "tbody tr", r"page-\d.*packed.*other node.*node-\d+.*node-\d+")
        await asyncio.to_thread(shown, driver, "nav a", "Shadow")
        await asyncio.to_thread(shown, driver, "tbody a", r"page-\d", click=True)
        await asyncio.to_thread(
            shown, driver, ".verdict", r"other node.*in place \d+, \d+ points behind.*bound on node-"
        )
        await asyncio.to_thread(
            shown, driver, ".sides > section:first-child", r"Live.*Best: node-\d+.*Possible.*chosen"
        )
        await asyncio.to_thread(shown, driver, ".sides > section:last-child", r"Shadow packed.*Best: node-\d+")
        wide = await asyncio.to_thread(
            driver.execute_script, "return document.documentElement.scrollWidth - innerWidth"
        )
        assert wide <= 0
        assert severe(driver) == []
