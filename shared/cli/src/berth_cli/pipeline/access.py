"""Users of the embedded NATS server: random passwords in the pipeline's private folder, where commands find them.

Processes of all users of the machine can connect to the loopback address, and the pipeline may hold the credentials of
a real cluster.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

from berth_cli.pipeline.accounts import DOMAIN, users
from berth_cli.pipeline.natsconf import nats_conf

FOLDER_PREFIX: Final = "berth-of-"
APPLY: Final = "apply"
PEOPLE: Final = "people"
_CREDENTIALS: Final = "credentials"
_ADDRESS: Final = "address"
_KUBECONFIG: Final = "kubeconfig"
_LIMITS: Final = "limits"


def create_passwords(folder: Path, prefix: str = "") -> str:
    """Write a random password for each user; return the server's configuration of accounts, with the passwords."""
    private = folder / _CREDENTIALS
    private.mkdir(mode=0o700, exist_ok=True)
    lines = []
    for user in users(prefix):
        password = secrets.token_hex(24)
        _write(private / user.names.own_word(user.name), password)
        lines.append(f'{user.name}_PASSWORD: "{password}"\n')
    return "".join(lines) + nats_conf(prefix)


def announce_address(folder: Path, address: str) -> None:
    """Write the server's address, by which commands of the same user find its passwords."""
    _write(folder / _CREDENTIALS / _ADDRESS, address)


def announce_cluster(folder: Path, kubeconfig: Path) -> None:
    """Write the given cluster, which commands of the same user name beside its uid."""
    _write(folder / _CREDENTIALS / _KUBECONFIG, str(kubeconfig.absolute()))


def cluster_of(address: str) -> str:
    """The kubeconfig of this user's pipeline whose embedded server has this address; may be empty."""
    folder = find_folder(address)
    try:
        return "" if folder is None else (folder / _CREDENTIALS / _KUBECONFIG).read_text(encoding="utf-8")
    except OSError:  # its cluster is simulated, or it is ending
        return ""


def write_limits(folder: Path, variables: Mapping[str, str]) -> None:
    """Write the sizes of streams that services and commands share."""
    _write(folder / _CREDENTIALS / _LIMITS, "".join(f"{name}={value}\n" for name, value in variables.items()))


def _limits(folder: Path) -> dict[str, str]:
    lines = (folder / _CREDENTIALS / _LIMITS).read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines)


def password_file(folder: Path, user: str) -> Path:
    return folder / _CREDENTIALS / user


def environment(folder: Path, user: str, prefix: str = "") -> Mapping[str, str]:
    """Variables of a service that connects as this user, named without prefix."""
    known = next(one for one in users(prefix) if one.names.own_word(one.name) == user)
    return {
        "BERTH_NATS_USER": known.name,
        "BERTH_NATS_PASSWORD_FILE": str(password_file(folder, user)),
        "BERTH_NATS_INBOX_PREFIX": known.inbox,
        "BERTH_NATS_DOMAIN": "" if known.is_own else DOMAIN,
        "BERTH_NATS_PREFIX": prefix,
        **_limits(folder),
    }


def find_folder(address: str, place: Path | None = None) -> Path | None:
    """The folder of this user's pipeline whose embedded server has this address.

    ``place``: another folder for temporary files, of the process that started it.
    """
    return next((folder for found, folder in _own_pipelines(place) if found == address), None)


def own_addresses(place: Path | None = None) -> list[str]:
    """Addresses of the embedded servers of this user's running pipelines; ``place`` as in :func:`find_folder`."""
    return sorted({address for address, _ in _own_pipelines(place)})


def _own_pipelines(place: Path | None) -> Iterator[tuple[str, Path]]:
    """Address and folder of each."""
    # Of a full TMPDIR Python makes no folder for temporary files; what is in it can be read all the same.
    places = {Path(name) for name in (place or os.environ.get("TMPDIR"), place or tempfile.gettempdir()) if name}
    for file in chain.from_iterable(each.glob(f"{FOLDER_PREFIX}*/{_CREDENTIALS}/{_ADDRESS}") for each in places):
        folder = file.parent.parent
        try:
            is_own = file.stat().st_uid == file.parent.stat().st_uid == os.getuid()
            # After a crash the port may be another user's.
            if is_own and not is_abandoned(folder):
                yield file.read_text(encoding="utf-8"), folder
        except OSError:  # another user's folder, or one that is being removed
            continue


def is_abandoned(folder: Path) -> bool:
    owner = folder.name.removeprefix(FOLDER_PREFIX).partition("-")[0]
    return owner.isdigit() and not is_running(int(owner))


def is_running(pid: int) -> bool:
    """Whether the process exists, also another user's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
