"""The entry of the command ``berth``: Ctrl-C ends it silently while it starts.

Importing the commands takes most of a second. A command that cleans up, or has an answer after Ctrl-C, takes the signal
back while it runs (``run_command``).
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have had it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from berth.cli import app  # noqa: PLC0415 - after the signal

    sys.exit(app.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
