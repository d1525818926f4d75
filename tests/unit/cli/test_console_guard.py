"""Who may look at the console: by token, by cookie, through a proxy, and under which names."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from berth.exits import UsageError
from berth.settings.readers import Secret
from berth_cli.console.guard import SESSION, Guard, is_loopback, name_of_host, read_token, trusted_proxy

NOW = 1_800_000_000.0
TOKEN = Secret("a-token-that-nobody-guesses")
ELSEWHERE = "192.0.2.7"


def a_guard(host: str = "127.0.0.1", **given: object) -> Guard:
    return Guard.of(host, **{"names": (), "token": None, "proxy": None, **given})


def looks(guard: Guard, *, peer: str = ELSEWHERE, cookie: str | None = None, now: float = NOW, **headers: str) -> bool:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return guard.may_look(named, cookie, peer, now=now)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_this_machine_alone_needs_no_token(host):
    assert is_loopback(host)
    assert looks(a_guard(host), peer="127.0.0.1")


@pytest.mark.parametrize("host", [ELSEWHERE, "::", "", "console.example", "127.0.0.1.example"])
def test_what_other_machines_reach_is_refused_without_a_token(host):
    with pytest.raises(UsageError, match="say who may look with --token-file"):
        a_guard(host)
    assert not looks(a_guard(host, token=TOKEN))


def test_the_token_is_taken_as_a_bearer_and_no_other_is():
    guard = a_guard(ELSEWHERE, token=TOKEN)
    assert looks(guard, Authorization=f"Bearer {TOKEN.reveal()}")
    for wrong in ("", "Bearer ", "Bearer wrong", f"Basic {TOKEN.reveal()}", TOKEN.reveal(), "Bearer \udcff"):
        assert not looks(guard, Authorization=wrong)


def test_a_session_ends_after_its_time_and_with_its_token():
    guard = a_guard(ELSEWHERE, token=TOKEN)
    cookie = guard.new_session(now=NOW)
    assert TOKEN.reveal() not in cookie
    assert looks(guard, cookie=cookie)
    assert looks(a_guard(ELSEWHERE, token=TOKEN), cookie=cookie)  # as after a restart
    assert not looks(guard, cookie=cookie, now=NOW + (SESSION + timedelta(seconds=1)).total_seconds())
    assert not looks(a_guard(ELSEWHERE, token=Secret("another-token-of-it")), cookie=cookie)


def test_a_session_cannot_be_made_or_made_longer():
    guard = a_guard(ELSEWHERE, token=TOKEN)
    expiry, _, signature = guard.new_session(now=NOW).partition(".")
    longer = str(int(expiry) + 1)
    forged = [
        f"{longer}.{signature}",
        f"{expiry}.",
        f"{expiry}.{signature[:-1]}0x",
        f".{signature}",
        "",
        "\udcff.x",
        ".",
    ]
    for cookie in forged:
        assert not looks(guard, cookie=cookie), cookie


def test_no_session_is_good_where_there_is_no_token():
    with_token, proxy = a_guard(ELSEWHERE, token=TOKEN), trusted_proxy("X-User", ["10.0.0.5"])
    guard = a_guard(ELSEWHERE, proxy=proxy)
    assert not looks(guard, cookie=with_token.new_session(now=NOW))
    assert not looks(guard, cookie=guard.new_session(now=NOW))


def test_a_proxy_is_believed_at_its_address_only():
    guard = a_guard(ELSEWHERE, proxy=trusted_proxy("X-User", ["10.0.0.5", "fd00::/64"]))
    for peer in ("10.0.0.5", "::ffff:10.0.0.5", "fd00::7"):
        assert looks(guard, peer=peer, X_User="alice")
        assert not looks(guard, peer=peer)
        assert not looks(guard, peer=peer, X_User="  ")
    for peer in ("10.0.0.6", "127.0.0.1", "", "unix"):
        assert not looks(guard, peer=peer, X_User="alice")


@pytest.mark.parametrize(
    ("header", "addresses"),
    [
        pytest.param("X-User", [], id="no address"),
        pytest.param(None, ["10.0.0.5"], id="no header"),
        pytest.param("X-User: alice", ["10.0.0.5"], id="no name"),
        pytest.param("X-User", ["proxy.example"], id="a name in place of an address"),
    ],
)
def test_a_proxy_is_named_whole(header, addresses):
    with pytest.raises(UsageError, match="--proxy-"):
        trusted_proxy(header, addresses)


def test_names_of_others_that_point_here_are_not_ours():
    guard = a_guard(ELSEWHERE, token=TOKEN, names=["Console.Example"])
    for host in (
        "localhost:8090",
        "127.0.0.1",
        "[::1]:8090",
        "192.0.2.7:8090",
        "console.example",
        "CONSOLE.example:443",
    ):
        assert guard.knows(host), host
    for host in (
        None,
        "",
        "evil.example",
        "localhost.evil.example",
        "user@localhost",
        "localhost:x",
        "[::1",
        "a b",
        "/",
    ):
        assert not guard.knows(host), host


def test_a_wildcard_is_no_name():
    assert not a_guard("::", token=TOKEN).knows("[::]:8090")


@pytest.mark.parametrize("header", ["localhost:99999", "localhost:0x1", "[", "x@localhost", "localhost/../x"])
def test_a_host_that_cannot_be_read_is_nobody(header):
    assert name_of_host(header) == ""


def test_a_post_comes_from_the_page_that_it_is_sent_to():
    guard = a_guard()
    assert guard.same_origin("http://localhost:8090", "localhost:8090")
    assert guard.same_origin("https://localhost:8090", "LOCALHOST:8090")
    for origin in (
        None,
        "null",
        "http://localhost",
        "http://evil.example",
        "file://localhost:8090",
        "localhost:8090",
        "http://[x",
    ):
        assert not guard.same_origin(origin, "localhost:8090"), origin


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        pytest.param(b"short\n", "want 16 to 1024 characters, got 5", id="guessable"),
        pytest.param(b" \n", "got 0", id="empty"),
        pytest.param(b"x" * 2000, "got 2000", id="long"),
        pytest.param(b"\xff" * 20, "not UTF-8", id="no text"),
    ],
)
def test_a_token_that_is_of_no_use_is_refused(tmp_path: Path, written: bytes, reason: str):
    (tmp_path / "token").write_bytes(written)
    with pytest.raises(UsageError, match=reason):
        read_token(tmp_path / "token")


def test_a_token_is_shown_nowhere(tmp_path: Path):
    (tmp_path / "token").write_text(f"  {TOKEN.reveal()}\n")
    guard = a_guard(ELSEWHERE, token=read_token(tmp_path / "token"))
    assert looks(guard, Authorization=f"Bearer {TOKEN.reveal()}")
    assert TOKEN.reveal() not in repr(guard)
