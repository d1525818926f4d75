"""Contexts of the NATS CLI: a server and its credentials, as ``nats context add`` stores them.

Read from ``NAME.json`` in ``~/.config/nats/context`` or ``$XDG_CONFIG_HOME/nats/context``. The context selected by
``nats context select`` is not used by default, because berth's commands find the embedded server of ``berth up``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from berth.decoding import MALFORMED
from berth.exits import UsageError

SETTINGS: Final[Mapping[str, str]] = {
    "url": "nats.url",
    "user": "nats.user",
    "password": "nats.password",
    "token": "nats.token",
    "creds": "nats.credentials_file",
    "nkey": "nats.nkey_seed_file",
    "cert": "nats.cert_file",
    "key": "nats.key_file",
    "ca": "nats.ca_file",
    "jetstream_domain": "nats.domain",
    "inbox_prefix": "nats.inbox_prefix",
}  # settings by context field
FILES: Final = frozenset({"creds", "nkey", "cert", "key", "ca"})
# Fields that change how a server is reached, without an equivalent setting of berth.
REFUSED: Final = ("user_jwt", "nsc", "socks_proxy", "jetstream_api_prefix", "tls_first", "windows_cert_store")


def context_settings(name: str) -> Mapping[str, str]:
    """Settings in a context of the ``nats`` command, by path.

    Raises:
        UsageError: there is no such context, or it has a field that berth does not support.
    """
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "nats" / "context"
    path = folder / f"{name}.json"
    if Path(name).name != name:
        raise UsageError(f"reading the NATS context {name!r}: want the name of a file in {folder}, without .json")
    fields = _read(path, name, folder)
    if refused := [field for field in REFUSED if fields.get(field)]:
        raise UsageError(f"reading the NATS context {name!r}: berth cannot connect with its {', '.join(refused)}")
    found = {field: str(fields[field]) for field in SETTINGS if fields.get(field)}
    return {SETTINGS[field]: _path(text) if field in FILES else text for field, text in found.items()}


def _read(path: Path, name: str, folder: Path) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError as error:
        there = ", ".join(sorted(each.stem for each in folder.glob("*.json"))) or "none"
        raise UsageError(f"reading the NATS context {name!r}: {folder} has {there}") from error
    except OSError as error:
        raise UsageError(f"reading the NATS context {name!r}: {path}: {error.strerror or error}") from error
    except MALFORMED as error:
        raise UsageError(f"reading the NATS context {name!r}: {path} is no JSON object: {error}") from error


def _path(text: str) -> str:
    return str(Path(text).expanduser())
