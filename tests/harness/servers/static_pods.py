"""What a kubelet does with the manifest of kube-scheduler: the program runs as long as the file is in the folder."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from harness.servers.child_processes import spawn, stop

LOOK_SECONDS = 0.05


@contextmanager
def static_pods(manifests: Path, programs: Path, log: Path) -> Iterator[None]:
    """Run the programs of the manifests in a folder; those of the folder `programs` take the place of images."""
    ended = threading.Event()

    def follow() -> None:
        running: dict[Path, subprocess.Popen[bytes]] = {}
        while not ended.wait(LOOK_SECONDS):
            found = set(manifests.glob("*.yaml"))
            for path in running.keys() - found:
                stop([running.pop(path)])
            for path in found - running.keys():
                running[path] = spawn(_command(path, programs), log)
        stop(list(running.values()))

    following = threading.Thread(target=follow, name="kubelet")
    following.start()
    try:
        yield
    finally:
        ended.set()
        following.join()


def _command(manifest: Path, programs: Path) -> list[str]:
    (container,) = yaml.safe_load(manifest.read_text())["spec"]["containers"]
    program, *flags = container["command"]
    return [str(programs / program), *flags]
