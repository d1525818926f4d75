"""Header blocks are read as nats-py reads them."""

import pytest
from nats.aio.client import Client

from berth.bus.client import GuardedClient

BLOCKS = [
    b"",
    b"\r\n\r\n",
    b"Nats-Msg-Id: uid.7.1\r\ntraceparent: 00-ab-cd-00\r\n\r\n",
    b"Name:value\r\nTab:\tvalue\t\r\nEmpty:\r\nTwo: a: b\r\n",
    b" Padded : value \r\nBad Name: x\r\nTab\tname: x\r\nno colon\r\n",
    b": no name\r\nName: first\r\nName: second\r\n",
    b"H\xc3\xb6he: x\r\nText: H\xc3\xb6he\r\nBroken: \xff\xfe\r\n",
    b"Line\nbreak: x\r\nUnit\x1fseparator: y\r\nLone\rreturn: z",
]


@pytest.mark.parametrize("block", BLOCKS)
def test_headers_are_those_of_nats_py(block):
    assert GuardedClient._parse_header_lines(block) == Client._parse_header_lines(block)
