"""Health check of a container without wget and curl: requests PATH (/readyz) on the container's health port.

    python3 -I -S /opt/berth/healthy.py [PORT [PATH]]

Exits with 0 when the status is 200. Otherwise it prints the response, which `docker inspect` shows, and exits with 1.
It uses a plain socket: importing an HTTP library takes 40 ms, and this program runs every few seconds.
"""

# ruff: noqa: INP001 - a program of the image, not part of a package

import os
import socket
import sys

TIMEOUT_SECONDS = 2.0


def get(port: int, path: str) -> str:
    """Return the whole response, status line and headers included."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as server:
        server.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        parts = []
        while part := server.recv(4096):
            parts.append(part)
    return b"".join(parts).decode(errors="replace")


def main(arguments: list[str]) -> int:
    port = int(arguments[0]) if arguments else int(os.environ.get("BERTH_HEALTH_PORT", "10259"))
    path = arguments[1] if len(arguments) > 1 else "/readyz"
    try:
        response = get(port, path)
    except OSError as exc:
        sys.stdout.write(f"requesting {path} on port {port}: {exc}\n")
        return 1
    status = response.partition(" ")[2][:3]
    if status != "200":
        sys.stdout.write(f"{path} on port {port} answered {status}: {response.rpartition(chr(10))[2]}\n")
    return int(status != "200")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
