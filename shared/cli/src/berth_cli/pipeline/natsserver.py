"""The embedded nats-server: its program, and its configuration for the local machine.

It is searched only when needed, so that services do not depend on it.
"""

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
# Bytes that wait for one connection; a connection that reads nothing is closed there. The server's default is 64 MB.
MOST_PENDING_BYTES: Final = 16 * MEBIBYTE
# Connections of a server, also of clients without a login, which cost up to 44 KiB each until the server ends them, up
# to 5 s later. Further ones are refused. The server's default is 65,536.
MOST_CONNECTIONS: Final = 2048
MOST_PAYLOAD_BYTES: Final = 8 * MEBIBYTE  # by default; an unfinished message costs the server its size
# Messages that wait to be stored in one stream; further ones are refused. What a stream delivers and answers waits
# behind them: with the server's default of 100,000 a hostile scorer's flood holds up deliveries for seconds (ADR 65).
MOST_BUFFERED: Final = 1024
LOG_BYTES: Final = 8 * MEBIBYTE  # of a log file, and how many older ones are kept
LOG_FILES: Final = 2
HOW_TO_GET_IT: Final = (
    "`pip install 'berth-cli[embedded]'` brings it on Linux and Windows; elsewhere take it from "
    "https://github.com/nats-io/nats-server/releases and put it on the PATH"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    # Folder for the streams; the server makes a folder `jetstream` in it. Streams survive a restart if it is kept.
    store: Path

    port: int = 4222  # on the loopback address, 1..65535

    name: str = ""  # shown to clients; empty: the server generates one

    monitoring_port: int | None = None  # HTTP monitoring on the loopback address; None: off

    # Largest message, from 64 KiB to 64 MiB; at least the `message_bytes` of the topology.
    max_payload_bytes: int = MOST_PAYLOAD_BYTES

    # Bytes of disk for streams; None: the server's default, three quarters of the free bytes.
    store_bytes: int | None = None

    # The log, in files of bounded size; None: standard error.
    log: Path | None = None

    # Sync each message to disk before its PubAck, for power cuts. A kill of the server loses no message either way.
    sync_always: bool = False


def find_nats_server() -> Path:
    """The program: beside the interpreter, where the wheel of the extra ``embedded`` puts it, or on the PATH.

    Raises:
        BusRefusedError: it was not found; the text names how to get it.
    """
    found = shutil.which(PROGRAM, path=str(Path(sys.executable).parent)) or shutil.which(PROGRAM)
    if found is None:
        raise BusRefusedError(
            f"looking for {PROGRAM}: not beside {sys.executable} and not on the PATH: {HOW_TO_GET_IT}"
        )
    return Path(found)


def config_text(settings: ServerSettings) -> str:
    lines = [
        f"listen: {_quoted(f'{LOOPBACK}:{settings.port}')}",
        *([f"server_name: {_quoted(settings.name)}"] if settings.name else []),
        f"max_payload: {settings.max_payload_bytes}",
        f"max_pending: {MOST_PENDING_BYTES}",
        f"max_connections: {MOST_CONNECTIONS}",
        *_log_lines(settings.log),
        *([f"http: {_quoted(f'{LOOPBACK}:{settings.monitoring_port}')}"] if settings.monitoring_port else []),
        "jetstream {",
        f"  store_dir: {_quoted(str(settings.store))}",
        f"  max_buffered_msgs: {MOST_BUFFERED}",
        *([f"  max_file_store: {settings.store_bytes}"] if settings.store_bytes else []),
        *(["  sync_interval: always"] if settings.sync_always else []),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _log_lines(log: Path | None) -> list[str]:
    # The server writes a line for each refused publish.
    if log is None:
        return []
    return [
        f"log_file: {_quoted(str(log))}",
        f"logfile_size_limit: {LOG_BYTES}",
        f"logfile_max_num: {LOG_FILES}",
    ]


def server_address(settings: ServerSettings) -> str:
    return f"nats://{LOOPBACK}:{settings.port}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
