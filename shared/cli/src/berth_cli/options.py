"""Options, errors and exit codes that all commands share.

An expected error of berth is one line on standard error and an exit code (docs/design.md, 7).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from berth.errors import BerthError, first_error
from berth.exits import Exit, UsageError, exit_for
from berth.messages.subjects import PREFIX, escape_dotted, escape_token
from berth.settings.readers import object_name
from berth_cli.rendering import MOST_ROWS, note, print_json, print_yaml

T = TypeVar("T")
DEFAULT_NAMESPACE = "default"


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_document(self) -> bool:
        return self is not OutputFormat.TABLE


Output = Annotated[
    OutputFormat, typer.Option("-o", "--output", help="A table for people, or JSON or YAML for programs.")
]


EveryRow = Annotated[
    bool, typer.Option("--all", help=f"Print every row; by default a table has the first {MOST_ROWS}.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubectlPlugin:
    """The context object of a command that kubectl started; names are then read as kubectl reads them."""


def _pod_as_kubectl_has_it(context: typer.Context, value: str) -> str:
    """``pod/web`` is the pod ``web``, as in ``kubectl get pod/web``."""
    if isinstance(context.obj, KubectlPlugin):
        kind, slash, name = value.partition("/")
        if slash and kind.lower() in {"pod", "pods", "po"}:
            return name
    return value


def _namespace_as_kubectl_has_it(context: typer.Context, value: str | None) -> str | None:
    """kubectl's default namespace comes from the kubeconfig's context."""
    if value is None and isinstance(context.obj, KubectlPlugin) and not context.resilient_parsing:
        from berth.kube.kubeconfig import Kubeconfig  # noqa: PLC0415 - for kubectl alone

        return Kubeconfig(os.environ.get("BERTH_KUBECONFIG")).namespace() or None
    return value


PodArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAMESPACE/POD", help="The pod, or its name alone.", show_default=False, callback=_pod_as_kubectl_has_it
    ),
]
PodNamespace = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namespace",
        metavar="NS",
        help=f"The namespace of a pod that is named alone; by default {DEFAULT_NAMESPACE!r}.",
        show_default=False,
        callback=_namespace_as_kubectl_has_it,
    ),
]


IsGroup = Annotated[bool, typer.Option("--group", help="The name is a PodGroup's.")]


STANDARD_INPUT: Final = Path("/dev/stdin")


def named_file(text: str) -> Path:
    return STANDARD_INPUT if text == "-" else Path(text)


def shown(file: Path) -> str:
    return "standard input" if file == STANDARD_INPUT else str(file)


# Presets of kube-scheduler 1.18: few people start from one, so `berth config` alone lists these flags.
Provider = Annotated[str | None, typer.Option("--algorithm-provider", envvar="BERTH_ALGORITHM_PROVIDER", hidden=True)]
Gates = Annotated[str | None, typer.Option("--feature-gates", envvar="BERTH_FEATURE_GATES", hidden=True)]

ServicesConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The services' configuration, for rankings made here and for what would help.",
        envvar="BERTH_CONFIG",
        show_default=False,
    ),
]


KubeconfigToRead = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="The cluster to read; by default KUBECONFIG's or ~/.kube/config's.",
        show_default=False,
    ),
]
KubeContext = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="NAME", help="A context of the kubeconfig; by default the current.", show_default=False
    ),
]


LONGEST_SECONDS: Final = 366 * 24 * 3600  # a year; clocks overflow on much larger values


def countable_seconds(seconds: float | None) -> float | None:
    # A comparison with ``nan`` is never true, so typer's bounds let it pass; ``inf`` passes every lower bound.
    if seconds is not None and not seconds <= LONGEST_SECONDS:
        raise typer.BadParameter(f"want at most {LONGEST_SECONDS} seconds, got {seconds:g}")
    return seconds


class NotFoundError(BerthError):
    """No such pod or message; the exit code is 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodName:
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def filter(self, stage: str) -> str:
        """The subject filter for the pod's messages of a stage (``*``: of all stages), in all profiles."""
        return f"{PREFIX}.{stage}.*.{escape_token(self.namespace)}.{escape_dotted(self.name)}"


def parse_pod(text: str, namespace: str | None = None, *, is_group: bool = False) -> PodName:
    """Parse ``namespace/name`` of a pod or PodGroup, or a name in the given namespace, by default ``default``.

    Raises:
        UsageError: the text has another form, or is no valid name.
    """
    what = "PodGroup" if is_group else "pod"
    named, slash, name = text.rpartition("/")
    if not name or (slash and not named) or "/" in named:
        raise UsageError(
            f"reading the {what} {text!r}: want NAMESPACE/NAME, or NAME in the namespace "
            f"{namespace or DEFAULT_NAMESPACE}"
        )
    if slash and namespace is not None and namespace != named:
        raise UsageError(f"reading the {what} {text!r}: it names another namespace than -n {namespace}")
    namespace = named or namespace or DEFAULT_NAMESPACE
    for part in (namespace, name):
        try:
            object_name(part)
        except ValueError as exc:
            raise UsageError(f"reading the {what} {text!r}: no {what} has such a name: {exc}") from exc
    return PodName(namespace=namespace, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Whom a command asked: the uid of the cluster's namespace kube-system, empty if unknown, and NATS's address."""

    cluster: str
    nats: str
    kubeconfig: str = ""  # of this user's own pipeline at that address, unless its cluster is simulated

    def __str__(self) -> str:
        cluster = self.cluster or "unknown (no watcher has named it yet)"
        return f"cluster {cluster}{f' ({self.kubeconfig})' if self.kubeconfig else ''}, NATS {self.nats}"


# Set once the command has a session on NATS. Here and in no argument, so that no command can forget it.
ANSWERED_BY: Final[ContextVar[Source | None]] = ContextVar("ANSWERED_BY", default=None)


def print_document(value: object, output: OutputFormat, *, one_of_many: bool = False) -> None:
    """Print a document for programs, with the cluster and the NATS that were asked.

    ``one_of_many``: it is part of a stream, in which JSON is one line a document.
    """
    source = ANSWERED_BY.get()
    if source is not None and isinstance(value, Mapping):
        value = {**value, "cluster": source.cluster, "nats": source.nats}
    if output is OutputFormat.YAML:
        print_yaml(value, one_of_many=one_of_many)
    else:
        print_json(value, indent=0 if one_of_many else 2)


def run_command(work: Coroutine[Any, Any, T], *, interrupted: Exit = Exit.NO) -> T:
    """Run a command to its end. ``interrupted`` is its exit code after Ctrl-C."""
    try:
        with reporting_errors(), _interruptible():
            return asyncio.run(work)
    except KeyboardInterrupt as error:
        raise typer.Exit(interrupted) from error


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Map expected errors in the block to a line and an exit code."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise _as_exit(first_error(group)) from group
    except BerthError as error:
        raise _as_exit(error) from error


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt in the block. Outside, it ends the process (:mod:`berth_cli.__main__`)."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stoppable() -> Iterator[None]:
    """On Ctrl-C, SIGTERM or SIGHUP, the block cleans up and the exit code is 1.

    For work without an event loop. Ignored signals stay ignored, as in :func:`until_stopped`.
    """

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _STOPPING}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, stop)
        yield
    except KeyboardInterrupt as error:
        note("stopped")
        raise typer.Exit(Exit.NO) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def until_stopped(work: Coroutine[Any, Any, T]) -> T | None:
    """Run the work until it ends, or until Ctrl-C, SIGTERM or SIGHUP (the terminal was closed).

    Returns ``None`` when stopped, after the work has cleaned up. Errors of the work are raised, also after a signal.
    Ignored signals stay ignored (``nohup``).
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    stopping = asyncio.Event()  # not task.cancelling(): a timeout in the work cancels it too

    def stop() -> None:
        if not stopping.is_set() and not task.done():
            stopping.set()
            task.cancel()
            note("stopping")

    for number in _STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop)
    await asyncio.gather(task, return_exceptions=True)
    return None if stopping.is_set() and task.cancelled() else task.result()


def _as_exit(error: BaseException) -> BaseException:
    if not isinstance(error, BerthError):
        return error
    note(" ".join(str(error).split()))
    return typer.Exit(exit_for(error))
