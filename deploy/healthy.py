"""Whether a service is ready: asks PATH (/readyz) on this container's health port; for images without wget and curl.

    python3 -I -S /opt/berth/healthy.py [PORT [PATH]]

Ends with 0 when the answer is 200; otherwise prints the answer, which `docker inspect` shows. A socket and no HTTP
library, since that takes 40 ms to import, and this runs all the time.
"""

# ruff: noqa: INP001 - a program of the image's, part of no package

import os
import socket
import sys

PATIENCE_SECONDS = 2.0


def answer(port: int, path: str) -> str:
    """The whole answer to a GET."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as server:
        server.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        parts = []
        while part := server.recv(4096):
            parts.append(part)
    return b"".join(parts).decode(errors="replace")


def main(arguments: list[str]) -> int:
    """Ask, and say what is not well."""
    port = int(arguments[0]) if arguments else int(os.environ.get("BERTH_HEALTH_PORT", "10259"))
    path = arguments[1] if len(arguments) > 1 else "/readyz"
    try:
        said = answer(port, path)
    except OSError as exc:
        sys.stdout.write(f"asking for {path} on port {port}: {exc}\n")
        return 1
    status = said.partition(" ")[2][:3]
    if status != "200":
        sys.stdout.write(f"{path} on port {port} answered {status}: {said.rpartition(chr(10))[2]}\n")
    return int(status != "200")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
