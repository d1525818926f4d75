"""The floods of `make bench-floods` reach every right that the table of docs/security.md names."""

from __future__ import annotations

import re

import pytest

from bench.floods import DIGITS, floods
from berth_cli.pipeline.accounts import publishes, users
from harness.servers.bus_users import inbox_of

OUTSIDE = [user for user in users() if not user.is_own]


@pytest.mark.parametrize("user", OUTSIDE, ids=lambda user: user.name)
def test_all_that_a_user_may_publish_is_flooded(user):
    sent = {
        line.split()[1].decode().replace("{n}", "1")
        for flood in floods()
        if flood.user == user.name
        for line in flood.lines
        if line.startswith(b"PUB ")
    }
    for subject in publishes(user):
        pattern = re.escape(subject).replace(r"\*", "[^.]+").replace(">", ".+")
        assert any(re.fullmatch(pattern, one) for one in sent), subject


def test_every_line_is_one_of_the_protocol_with_its_length():
    for flood in floods():
        for line in (each.replace(b"{n}", b"0" * DIGITS) for each in flood.lines):
            command, _, rest = line.partition(b"\r\n")
            if command.startswith(b"PUB ") and not flood.name.startswith("payloads"):
                assert rest == rest[: int(command.split()[-1])] + b"\r\n", flood.title


def test_each_asker_has_its_answers_sent_to_its_own_inbox():
    for flood in floods():
        replies = [line.split()[2].decode() for line in flood.lines if len(line.partition(b"\r\n")[0].split()) == 4]
        assert all(reply.startswith(f"{inbox_of(flood.user)}.") for reply in replies), flood.title
