"""The NATS client when a server dies during a write, on the event loop that the services use."""

import asyncio

import pytest
import uvloop

from berth.bus.client import GuardedClient
from harness.servers.nats_server import NatsServer


@pytest.mark.requires("nats-server")
def test_client_with_pending_data_closes_when_its_socket_breaks(own_nats_server: NatsServer):
    async def die_while_sending() -> bool:
        client = GuardedClient(only_tls=False)
        await client.connect(servers=[own_nats_server.address], allow_reconnect=False, pending_size=0)
        own_nats_server.kill()
        client.abort()
        client._pending, client._pending_data_size = [b"PUB a 1\r\nx\r\n"], 12
        await asyncio.wait_for(client._process_op_err(ConnectionResetError("reset by peer")), timeout=5)
        return client.is_closed

    assert uvloop.run(die_while_sending())
