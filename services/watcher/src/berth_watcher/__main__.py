"""``berth-watcher``: mirrors the cluster onto the bus and releases pending pods. Two run, one leads."""

from __future__ import annotations

from functools import partial

from berth.process.flags import service_command
from berth.process.start import start
from berth_watcher.service import serve

main = service_command(
    "berth-watcher",
    about="Mirrors the cluster onto NATS and releases pending pods by priority, then age. Two run, one leads.",
    start=partial(start, name="watcher", serve=serve),
)

if __name__ == "__main__":
    main()
