"""``berth-binder``: commits what the scorers have ranked. Two run, one leads."""

from __future__ import annotations

import berth.bootstrap  # noqa: F401 - before the others
from berth.lifecycle.start import service_command
from berth.profiles.configuration import read_configuration
from berth_binder.service import serve

main = service_command(
    "binder",
    about="Binds ranked pods to nodes: the only service that writes Bindings.",
    read=read_configuration,
    serve=serve,
)

if __name__ == "__main__":
    main()
