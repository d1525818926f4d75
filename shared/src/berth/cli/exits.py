"""How every command ends: an error that berth raises on purpose is one line and an exit code (DESIGN 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import typer

from berth.api.errors import BerthError
from berth.cli.pipeline.supervisor import ChildRefusedError
from berth.cli.rendering import note
from berth.process.exits import Exit, exit_for

T = TypeVar("T")


def finish(work: Coroutine[Any, Any, T], *, interrupted: Exit = Exit.NO) -> T:
    """Run to the end. ``interrupted`` is how it ends with Ctrl-C: for what only shows something, that is its end."""
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as group:
        raise _told(_first(group)) from group
    except (BerthError, ChildRefusedError) as error:
        raise _told(error) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(interrupted) from error


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _told(error: BaseException) -> BaseException:
    if not isinstance(error, BerthError | ChildRefusedError):
        return error
    note(" ".join(str(error).split()))
    return typer.Exit(Exit.USAGE if isinstance(error, ChildRefusedError) else exit_for(error))
