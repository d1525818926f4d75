"""``berth-watcher``: mirrors the cluster onto the bus and releases pending pods. Two run, one leads."""

from __future__ import annotations

import berth.bootstrap  # noqa: F401 - before the others
from berth.lifecycle.start import service_command
from berth.profiles.configuration import read_configuration
from berth_watcher.service import serve

main = service_command(
    "watcher",
    about="Mirrors the cluster onto NATS and releases pending pods by priority, then age. Two run, one leads.",
    read=read_configuration,
    serve=serve,
)

if __name__ == "__main__":
    main()
