"""Entry points of ``berth`` and ``kubectl berth``. Ctrl-C ends the command silently while it starts.

Importing the commands takes most of a second. A command that cleans up or answers after Ctrl-C takes the signal back
(``run_command``).
"""

from __future__ import annotations

import os
import shlex
import signal
import sys

import berth.bootstrap  # noqa: F401 - before the others


def main() -> None:
    _until_it_runs()
    from berth_cli import app  # noqa: PLC0415 - after the signal

    sys.exit(app.main(sys.argv[1:]))


def kubectl_main() -> None:
    """``kubectl-berth``, which kubectl runs for ``kubectl berth``."""
    _until_it_runs()
    from berth_cli import app  # noqa: PLC0415 - after the signal

    sys.exit(app.main(sys.argv[1:], kubectl=True))


def kubectl_complete_main() -> None:
    """``kubectl_complete-berth``, which kubectl runs for completions: one a line, a description after a tab.

    fish reads the same form; the last line makes kubectl offer no files.
    """
    _until_it_runs()
    from berth_cli import app  # noqa: PLC0415 - after the signal

    *typed, incomplete = sys.argv[1:] or [""]
    words = shlex.join(["berth", *typed, *([incomplete] if incomplete else [])])
    os.environ |= {
        app.COMPLETE: "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": words if incomplete else f"{words} ",
    }
    try:
        app.main([], kubectl=True)
    finally:
        sys.stdout.write(":4\n")
        sys.stdout.flush()


def _until_it_runs() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # some shells start it with SIGINT ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
