"""A real nats-server in a container of the public image, through testcontainers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from berth.bus.settings import MEBIBYTE
from harness.servers.containers import deprecations_of_testcontainers, started

CONFIGURATION = f"""\
listen: 0.0.0.0:4222
max_payload: {8 * MEBIBYTE}
jetstream {{ store_dir: /data }}
"""


@contextmanager
def nats_container(image: str) -> Iterator[str]:
    """Start one with JetStream; yields its address. It is removed at the end of the block."""
    with deprecations_of_testcontainers():
        from testcontainers.community.nats import NatsContainer  # noqa: PLC0415 - importing it warns

    with TemporaryDirectory(prefix="berth-nats-container-") as folder:
        file = Path(folder) / "nats.conf"
        file.write_text(CONFIGURATION)
        file.chmod(0o444)
        file.parent.chmod(0o755)
        container = NatsContainer(image).with_volume_mapping(folder, "/etc/berth", "ro")
        with started(container.with_command("--config /etc/berth/nats.conf")) as server:
            yield server.nats_uri()
