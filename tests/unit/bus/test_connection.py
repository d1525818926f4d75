"""What of nats-py the bus stands on."""

from __future__ import annotations

import ast
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.protocol.parser import Parser

import berth.bus
from berth.bus.connection import ReadingClient

T = TypeVar("T")
MODULES = sorted(Path(berth.bus.__file__).parent.glob("*.py"))


def names_of_nats(tree: ast.Module) -> set[str]:
    """What a module has imported from nats-py."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports if (node.module or "").startswith("nats.") for alias in node.names}


def private_names(tree: ast.Module) -> Iterator[str]:
    """Private attributes of anything but `self`."""
    for node in ast.walk(tree):
        is_private = isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if is_private and ast.unparse(node.value) != "self":
            yield ast.unparse(node)


ALLOWED = {"ReadingClient": {"super()._process_headers", "super()._build_message"}}
"""What keeps the library reading malformed messages; docs/adr/0008 says why."""


@pytest.mark.parametrize("module", MODULES, ids=[module.stem for module in MODULES])
def test_nats_py_is_used_by_its_public_names_but_for_the_two_that_keep_it_reading(module):
    tree = ast.parse(module.read_text())
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    derived = {one.name for one in classes if {ast.unparse(base) for base in one.bases} & names_of_nats(tree)}
    assert derived <= ALLOWED.keys()
    assert set(private_names(tree)) <= set().union(*ALLOWED.values())


def test_there_is_something_to_look_at():
    assert "Client" in set().union(*(names_of_nats(ast.parse(module.read_text())) for module in MODULES))


LINES = st.lists(st.from_regex(rb"[!-9;-~]{1,3} ?:? ?[ -~\t\x80-\xff\r\n]{0,4}", fullmatch=True), max_size=4)


@given(lines=LINES)
def test_headers_are_read_as_nats_py_reads_them(lines: list[bytes]):
    block = b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
    client = ReadingClient()
    ours, theirs = (
        without_waiting(read(client, block)) for read in (ReadingClient._process_headers, Client._process_headers)
    )
    assert without_odd_names(ours) == without_odd_names(theirs)


def without_odd_names(headers: dict[str, str] | None) -> dict[str, str]:
    """The library leaves out names with white space inside."""
    return {name: value for name, value in (headers or {}).items() if not set(name) & set(" \t\r\n")}


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        pytest.param(b"NATS/1.0\r\na: b\r\nc:d: e \r\na: f\r\n\r\n", {"a": "f", "c": "d: e"}, id="the last of a name"),
        pytest.param("NATS/1.0\r\na: ä\r\n\r\n".encode(), {"a": "ä"}, id="UTF-8"),
        pytest.param(b"NATS/1.0 404 No Messages\r\n\r\n", {"Status": "404", "Description": "No Messages"}, id="status"),
        pytest.param(b"NATS/1.0\r\n\r\n", None, id="nothing"),
        pytest.param(b"NATS/1.0", None, id="no line"),
        pytest.param(b"", None, id="no bytes"),
    ],
)
def test_headers_of_any_form_are_read(block: bytes, headers: dict[str, str] | None):
    assert without_waiting(ReadingClient()._process_headers(block)) == headers


def without_waiting(reading: Coroutine[None, None, T]) -> T:
    """The result of a coroutine that awaits nothing."""
    with pytest.raises(StopIteration) as done:
        reading.send(None)
    return done.value.value


FAULTS = [
    pytest.param(b"HMSG a 1 1 1\r\nx\r\n", id="a header block without a version"),
    pytest.param(b"HMSG a 1 16 16\r\nNATS/1.0 4\xff4 \r\n\r\n\r\n", id="a status that is not UTF-8"),
    pytest.param(b"MSG \xff 1 0\r\n\r\n", id="a subject that is not UTF-8"),
    pytest.param(b"MSG a 1 \xff 0\r\n\r\n", id="a reply that is not UTF-8"),
]


@pytest.mark.parametrize("message", FAULTS)
def test_nats_py_ends_its_reading_at_a_malformed_message_and_berths_client_does_not(message: bytes):
    # When the first assertion fails, nats-py is mended: ReadingClient loses the method (docs/adr/0008).
    with pytest.raises((IndexError, UnicodeDecodeError)):
        received(Client(), message)
    assert received(ReadingClient(), message) == 1


def received(client: Client, message: bytes) -> int:
    """The messages of a subscription after the client has parsed the bytes. An exception ends nats-py's reading."""
    subscription = Subscription(client, id=1, subject=">")
    client._subs[1] = subscription
    without_waiting(Parser(client).parse(message))
    return subscription.pending_msgs
