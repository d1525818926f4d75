"""A real Prometheus in a container of the public image, through testcontainers.

It shares this machine's network, since the exporters of tests listen on its loopback addresses (Linux only).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from testcontainers.core.container import DockerContainer

from harness.servers.child_processes import free_ports
from harness.servers.containers import started

FOLDER = "/etc/berth"


@contextmanager
def prometheus_container(image: str, folder: Path, targets: Sequence[str]) -> Iterator[str]:
    """Start one that scrapes these every second; yields its URL. It is removed at the end of the block."""
    (port,) = free_ports(1)
    folder.mkdir(parents=True)
    (folder / "prometheus.yml").write_text(_configuration(targets))
    container = DockerContainer(image).with_kwargs(
        network_mode="host", user="0"
    )  # only the owner can read pytest's folders
    container.with_volume_mapping(str(folder), FOLDER, "ro")
    container.with_command(
        f"--config.file={FOLDER}/prometheus.yml --storage.tsdb.path=/tmp/tsdb --web.listen-address=127.0.0.1:{port}"
    )
    with started(container):
        yield f"http://127.0.0.1:{port}"


def _configuration(targets: Sequence[str]) -> str:
    """As JSON, which is YAML."""
    job = {"job_name": "node-exporter", "static_configs": [{"targets": list(targets)}]}
    return json.dumps({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [job]})
