"""A real Prometheus that scrapes the test's targets, once a second unless told otherwise.

with prometheus_server(tmp_path, rules=tmp_path / "rules.yml") as server:
    server.scrape("127.0.0.2:9100", ...)
    server.scrape_services({"watcher": "127.0.0.1:10259", ...})
    server.scrape_containers([("scorer", "127.0.0.1:10259"), ...])
    server.url, server.stop()
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from harness.servers.child_processes import free_ports, spawn, stop

START_SECONDS = 30.0
CONFIG = """\
global: {{scrape_interval: {interval}, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
- job_name: node-exporter
  file_sd_configs: [{{files: [{targets}], refresh_interval: 1s}}]
- job_name: berth
  file_sd_configs: [{{files: [{services}], refresh_interval: 1s}}]
"""


class PrometheusServer:
    """One server with its store in a folder."""

    def __init__(self, folder: Path, rules: Path | None = None, interval: str = "1s") -> None:
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"
        self._folder = folder
        self._rules = rules
        self._interval = interval
        self._targets = folder / "targets.json"
        self._services = folder / "services.json"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        if not self._targets.exists():
            self.scrape()
        if not self._services.exists():
            self.scrape_services({})
        config = CONFIG.format(
            interval=self._interval, targets=self._targets, services=self._services, rules=self._rules or ""
        )
        (self._folder / "prometheus.yml").write_text(config)
        command = [
            "prometheus",
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'tsdb'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]
        self._process = spawn(command, self._folder / "prometheus.log")
        self._wait_until_ready()

    def scrape(self, *instances: str, replicas: Iterable[str] = ("a",)) -> None:
        """Scrape these exporters from now on, and no others: each once for each value of the label `replica`."""
        _replace(self._targets, [{"targets": list(instances), "labels": {"replica": one}} for one in replicas])

    def scrape_services(self, instances: Mapping[str, str]) -> None:
        """Scrape these of berth's processes from now on, by name, and no others."""
        _replace(
            self._services,
            [{"targets": [instance], "labels": {"service": name}} for name, instance in instances.items()],
        )

    def scrape_containers(self, containers: Iterable[tuple[str, str]]) -> None:
        """The same with the labels that a PodMonitor in the namespace ``berth`` gives, by name of the container."""
        _replace(
            self._services,
            [
                {"targets": [instance], "labels": {"namespace": "berth", "container": name}}
                for name, instance in containers
            ],
        )

    def stop(self) -> None:
        """Stop it; its store stays."""
        if self._process is not None:
            stop([self._process])
            self._process = None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                with urlopen(f"{self.url}/-/ready", timeout=1) as answer:  # noqa: S310 - the address of this server
                    if answer.status == 200:
                        return
            except (URLError, OSError):
                time.sleep(0.1)
        raise TimeoutError(f"starting prometheus: {(self._folder / 'prometheus.log').read_text()[-600:]}")


def _replace(file: Path, groups: list[dict]) -> None:
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(groups))
    draft.replace(file)


@contextmanager
def prometheus_server(folder: Path, rules: Path | None = None, interval: str = "1s") -> Iterator[PrometheusServer]:
    """Start one, stop it at the end; it evaluates the rules once a second. `interval`: between two scrapes."""
    folder.mkdir(parents=True, exist_ok=True)
    server = PrometheusServer(folder, rules, interval)
    server.start()
    try:
        yield server
    finally:
        server.stop()
