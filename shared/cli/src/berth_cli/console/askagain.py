"""Asks again now: ``berth why --now`` in a process of its own, one at a time, because it ranks every node."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from berth.decoding import decode_json
from berth.errors import BerthError, TemporaryError
from berth.exits import Exit, UsageError
from berth_cli.options import NotFoundError, PodName

# Seconds for one answer: reading the mirror of 5,000 nodes and 70,000 pods takes a few.
SECONDS: Final = 60.0
MOST_WAITING: Final = 4  # waiting questions
MOST_BYTES: Final = 16 * 1024 * 1024  # of an answer; with 5,000 nodes it has about three megabytes
ERROR_CHARACTERS: Final = 600
NO_KUBECONFIG: Final = "/dev/null/none"  # a path that cannot exist

_answer: Final = msgspec.json.Decoder(dict[str, object])


class AlreadyAskingError(TemporaryError):
    """Too many questions wait."""


class AskAgain:
    """Runs the command with these flags, which name NATS and the configuration."""

    def __init__(self, flags: tuple[str, ...], *, kubeconfig: Path | None) -> None:
        self._flags = (*flags, *(("--kubeconfig", str(kubeconfig)) if kubeconfig is not None else ()))
        self._environment = dict(os.environ) if kubeconfig is not None else _without_cluster(os.environ)
        self._one_at_a_time = asyncio.Lock()
        self._asking = 0

    async def ask(self, name: PodName) -> dict[str, object]:
        """The document of ``berth why --now -o json``, with the rest of its output under ``notes``.

        Raises:
            AlreadyAskingError: too many questions wait.
            NotFoundError, UsageError, TemporaryError: the command ended with this error and its text.
        """
        if self._asking > MOST_WAITING:
            raise AlreadyAskingError("asking again: other pods are being asked about: try again in a moment")
        self._asking += 1
        try:
            async with self._one_at_a_time:
                return await self._ask(name)
        finally:
            self._asking -= 1

    async def _ask(self, name: PodName) -> dict[str, object]:
        command = (sys.executable, "-m", "berth_cli", "why", str(name), "--now", "--output", "json", *self._flags)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
        )
        try:
            async with asyncio.timeout(SECONDS):
                printed, errors, code = await _output(process)
        except TimeoutError as error:
            raise TemporaryError(f"asking again about pod {str(name)!r}: no answer within {SECONDS:g} s") from error
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        notes = [line.removeprefix("berth: ") for line in errors.splitlines()]
        if code != Exit.DONE:
            raise _error(code, "; ".join(notes)[:ERROR_CHARACTERS] or f"berth why --now ended with {code}")
        document: dict[str, object] = decode_json(_answer, printed, "the answer of berth why --now")
        return document | {"notes": notes}


def _without_cluster(environment: Mapping[str, str]) -> dict[str, str]:
    # Without a kubeconfig: the page shows only data that its NATS user may read.
    left_out = {"BERTH_KUBECONFIG", "KUBERNETES_SERVICE_HOST"}
    others = {name: value for name, value in environment.items() if name not in left_out}
    return {**others, "KUBECONFIG": NO_KUBECONFIG}


async def _output(process: asyncio.subprocess.Process) -> tuple[bytes, str, int]:
    """Standard output, standard error and exit code.

    Raises:
        TemporaryError: it printed too much.
    """
    assert process.stdout is not None  # noqa: S101 - both are pipes
    assert process.stderr is not None  # noqa: S101 - the same
    printed, errors = await asyncio.gather(_read(process.stdout), _read(process.stderr))
    return printed, errors.decode(errors="replace"), await process.wait()


async def _read(stream: asyncio.StreamReader) -> bytes:
    parts = bytearray()
    while part := await stream.read(1 << 16):
        parts += part
        if len(parts) > MOST_BYTES:
            raise TemporaryError(f"asking again: the answer has more than {MOST_BYTES} bytes")
    return bytes(parts)


def _error(code: int, text: str) -> BerthError:
    if code == Exit.NO:
        return NotFoundError(text)
    return UsageError(text) if code == Exit.USAGE else TemporaryError(text)
