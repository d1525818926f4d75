"""``berth-binder``: commits what the scorers have ranked. Two run, one leads."""

from __future__ import annotations

from functools import partial

from berth.process.flags import service_command
from berth.process.start import start
from berth_binder.service import serve

main = service_command(
    "berth-binder",
    about="Binds ranked pods to nodes: the only service that writes Bindings.",
    start=partial(start, name="binder", serve=serve),
)

if __name__ == "__main__":
    main()
