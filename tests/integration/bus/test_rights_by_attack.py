"""Each user of NATS tries every subject with every form of reply. What is possible, docs/rights/bus.yaml says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from berth_cli.pipeline.access import create_passwords
from berth_cli.pipeline.accounts import users
from berth_cli.pipeline.natsconf import nats_conf
from berth_cli.pipeline.natsserver import ServerSettings, config_text
from harness.servers.bus_users import passwords_of
from harness.servers.nats_server import NatsServer, nats_cluster, nats_server, wait_for_jetstream
from harness.worlds.bus_rights import Attack, Right, covers, differences, observed, read_table, rights_of

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(240)]

DEPLOY = Path(__file__).parents[3] / "deploy"
WITHOUT_RIGHTS = {
    *("listen", "http", "server_name", "max_payload", "max_pending", "max_connections", "pid_file", "jetstream"),
    *("tls", "cluster", "lame_duck_grace_period", "lame_duck_duration"),
    *("log_file", "logfile_size_limit", "logfile_max_num"),
    "include",  # the accounts, which include the passwords
}
"""Settings of a server that change no right of a user."""


def expected(*prefixes: str, of_routes: bool = False) -> dict[str, set[Right]]:
    """The table, for the users of each of these berths."""
    table = read_table()
    return {
        user.name: rights_of(table, user.names.own_word(user.name), of_routes=of_routes)
        for prefix in prefixes
        for user in users(prefix)
    }


@contextmanager
def three_servers(extra: str, folder: Path) -> Iterator[list[NatsServer]]:
    folders = [folder / str(number) for number in range(3)]
    for each in folders:
        each.mkdir()
    servers = nats_cluster(folders, extra)
    try:
        for server in servers:
            server.start()
        wait_for_jetstream(servers)
        yield servers
    finally:
        for server in servers:
            server.stop()


async def test_users_can_do_what_the_table_says_and_nothing_else_also_beside_another_berth():
    """Of the berth with a prefix too, and neither reaches anything of the other."""
    prefixes = ("", "east")
    with nats_server(passwords_of(*prefixes) + observed(nats_conf(*prefixes))) as server:
        attack = Attack(server, server, {prefix: nats_conf(prefix) for prefix in prefixes})
        async with attack.begun():
            found = await attack.rights(expected(*prefixes))
    assert differences(found, expected(*prefixes)) == []


async def test_users_can_do_on_three_servers_what_they_can_do_on_one(tmp_path: Path):
    """They are connected to one, and those who could see an effect to another."""
    with three_servers(passwords_of() + observed(nats_conf()), tmp_path) as servers:
        attack = Attack(servers[0], servers[-1], {"": nats_conf()})
        async with attack.begun(replicas=3):
            found = await attack.rights(expected(""))
    for user, besides in expected("", of_routes=True).items():
        found[user] -= besides
    assert differences(found, expected("")) == []


ONE_MORE = {
    "apply": ("publish", "berth.ranked.>", ("publishes", "berth.ranked.>", "RANKED")),
    "watcher": ("publish", "$JS.API.STREAM.PURGE.PENDING", ("asks", "STREAM.PURGE", "PENDING")),
    "binder": ("subscribe", "_INBOX_watcher.>", ("hears", "_INBOX_watcher.>", "")),
    "scorer": ("publish", "$JS.berth.API.CONSUMER.CREATE.PENDING.x", ("asks", "CONSUMER.CREATE", "PENDING.x")),
    "collector": ("publish", "a.subject.of.nobody", ("publishes", "a.subject.of.nobody", "")),
    "facts": ("publish", "$KV.tries.>", ("publishes", "$KV.tries.>", "")),
    "shadow": ("subscribe", "$JS.>", ("hears", "$JS.>", "")),
    "people": ("publish", "berth.announce.berth-watcher.*", ("publishes", "berth.announce.berth-watcher.*", "")),
}
"""By user a kind of permission, a subject, and the line that the table lacks for it."""
WRITING = ("publishes", "with headers")
ONE_LESS = {
    "apply": "berth.admin.>",
    "watcher": "$KV.cluster.>",
    "binder": "berth.decision.>",
    "scorer": "berth.ranked.>",
    "collector": "$KV.bandwidth.>",
    "facts": "$KV.facts.>",
    "shadow": "berth.shadow.>",
    "people": "berth.service.>",
}


async def test_a_right_more_and_a_right_less_of_each_user_are_found():
    """What the tests above do about a change without a line in the table."""
    conf, wanted = nats_conf(), expected("")
    for user, (kind, subject, right) in ONE_MORE.items():
        conf = with_permission(without_permission(conf, user, ONE_LESS[user]), user, kind, subject)
        lost = {right for right in wanted[user] if right[0] in WRITING and covers(ONE_LESS[user], right[1])}
        wanted[user] = (wanted[user] - lost) | {right}
    wanted["apply"] |= {("with headers", "berth.ranked.>", "KV-Operation")}
    wanted["watcher"] |= {("removes", "PENDING", "")}
    with nats_server(passwords_of() + observed(conf)) as server:
        attack = Attack(server, server, {"": conf})
        async with attack.begun():
            found = await attack.rights(wanted)
    assert differences(found, wanted) == []
    said = differences(found, expected(""))
    assert {one.split()[0] for one in said if "can, without a line" in one} == ONE_MORE.keys()
    assert {one.split()[0] for one in said if "cannot, with a line" in one} == ONE_LESS.keys()


def with_permission(conf: str, user: str, kind: str, subject: str) -> str:
    changed, count = re.subn(
        rf"(user: {user}, [^\0]*?{kind}: \[\n)", lambda found: f'{found[1]}          "{subject}"\n', conf, count=1
    )
    assert count == 1
    return changed


def without_permission(conf: str, user: str, subject: str) -> str:
    changed, count = re.subn(rf'(user: {user}, [^\0]*?) *"{re.escape(subject)}"\n', r"\1", conf, count=1)
    assert count == 1
    return changed


@pytest.mark.parametrize("prefix", ["", "east"])
def test_the_embedded_server_has_the_accounts_that_are_tried(tmp_path: Path, prefix: str):
    *passwords, accounts = create_passwords(tmp_path, prefix).partition("# Generated")
    assert "".join(accounts) == nats_conf(prefix).removeprefix("# Generated")
    assert all(re.fullmatch(r'[\w-]+_PASSWORD: "\w+"', line) for line in passwords[0].splitlines())


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("**/nats*.conf")), ids=lambda file: str(file.relative_to(DEPLOY)))
def test_servers_of_deploy_have_no_setting_that_gives_a_right(file: Path):
    """Their accounts are in one file, which a test compares with what `berth bus permissions` prints."""
    assert settings_in(file.read_text()) <= WITHOUT_RIGHTS


def test_the_embedded_server_has_no_setting_that_gives_a_right(tmp_path: Path):
    settings = ServerSettings(
        store=tmp_path, name="x", monitoring_port=1, store_bytes=1, log=tmp_path, sync_always=True
    )
    assert settings_in(config_text(settings)) <= WITHOUT_RIGHTS


def settings_in(conf: str) -> set[str]:
    """The settings of the server itself."""
    return {found[0] for line in conf.splitlines() if (found := re.match(r"[a-z_]+", line))}
