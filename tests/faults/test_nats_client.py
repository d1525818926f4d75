"""What the library would do when a server dies in the middle of a write, on the loop that services run on."""

import asyncio

import pytest
import uvloop

from berth.bus.client import GuardedClient
from harness.servers.nats_server import NatsServer


@pytest.mark.requires("nats-server")
def test_client_whose_socket_died_with_data_pending_is_closed_without_an_error(own_nats_server: NatsServer):
    async def die_while_sending() -> bool:
        client = GuardedClient(only_tls=False)
        await client.connect(servers=[own_nats_server.address], allow_reconnect=False, pending_size=0)
        own_nats_server.kill()
        client.abort()
        client._pending, client._pending_data_size = [b"PUB a 1\r\nx\r\n"], 12
        await asyncio.wait_for(client._process_op_err(ConnectionResetError("reset by peer")), timeout=5)
        return client.is_closed

    assert uvloop.run(die_while_sending())
