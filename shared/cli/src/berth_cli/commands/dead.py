"""``berth dead``: messages that failed to decode or failed too often, and a new attempt for a pod."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.table import Table

from berth.bus.interface import Session, StoredMessage
from berth.bus.topology import DEAD
from berth.errors import DecodeError
from berth.messages.attempts import DeadLetter
from berth.messages.encoding import decode
from berth.messages.queue import RETRY, PodRequest, QueuedPodDetail
from berth.messages.subjects import PREFIX, PodSubject
from berth_cli.bus import NatsContext, NatsServer, NatsUrl, open_admin_session, open_session
from berth_cli.options import (
    EveryRow,
    NotFoundError,
    Output,
    OutputFormat,
    PodName,
    PodNamespace,
    parse_pod,
    print_document,
    run_command,
)
from berth_cli.pods.waiting import ask_watcher, detail_lines, leading_watcher
from berth_cli.rendering import MOST_ROWS, ago, and_more, clock, duration, indented, new_table, plain, print_rich

app = typer.Typer(
    name="dead",
    help="Dead letters: messages that could not be decoded, or failed.",
    invoke_without_command=True,
)
_POD_PREFIX: Final = f"{PREFIX}.{DEAD}."

Letter = Annotated[
    str,
    typer.Argument(
        metavar="NUMBER|NAMESPACE/POD",
        help="The dead letter's number, or the pod, for its last letter.",
        show_default=False,
    ),
]
ListedNamespace = Annotated[
    str | None, typer.Option("-n", "--namespace", metavar="NS", help="Only pods of this namespace.", show_default=False)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLetter:
    """``letter`` is ``None`` if it cannot be decoded either."""

    number: int
    at: datetime
    subject: str
    letter: DeadLetter | None
    pod: PodName | None

    @classmethod
    def of(cls, stored: StoredMessage) -> StoredLetter:
        try:
            letter = decode(stored.data, DeadLetter)
        except DecodeError:
            letter = None
        return cls(
            number=stored.sequence, at=stored.time, subject=stored.subject, letter=letter, pod=_pod_of(stored.subject)
        )

    @property
    def about(self) -> str:
        """The pod, or the subject if the letter has no pod."""
        return str(self.pod) if self.pod else self.subject.removeprefix(_POD_PREFIX)


def _pod_of(subject: str) -> PodName | None:
    try:
        found = PodSubject.parse(f"{PREFIX}.pending.{subject.removeprefix(_POD_PREFIX)}")
    except DecodeError:
        return None
    return PodName(namespace=found.namespace, name=found.pod)


@app.callback()
def list_letters(  # noqa: PLR0913 - one parameter a flag, given by name
    context: typer.Context,
    *,
    namespace: ListedNamespace = None,
    every_row: EveryRow = False,
    output: Output = OutputFormat.TABLE,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """List the dead letters, the newest last; they are kept for a week. Every command takes a pod or a number."""
    if context.invoked_subcommand is None:
        run_command(_list(NatsServer(nats, nats_context), namespace, output, every_row=every_row))


@app.command("list")
def list_command(
    *,
    namespace: ListedNamespace = None,
    every_row: EveryRow = False,
    output: Output = OutputFormat.TABLE,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """List the dead letters, the newest last."""
    run_command(_list(NatsServer(nats, nats_context), namespace, output, every_row=every_row))


async def _list(server: NatsServer, namespace: str | None, output: OutputFormat, *, every_row: bool) -> None:
    async with open_session(server, name="dead", is_named=not output.is_document) as session:
        letters = [letter async for letter in _letters(session, namespace)]
        now = (await session.state(DEAD)).now
    if output.is_document:
        print_document({"letters": [letter_json(letter, now) for letter in letters]}, output)
    elif letters:
        print_rich(*list_lines(letters, now, rows=None if every_row else MOST_ROWS))
    else:
        print_rich("there are no dead letters" + (f" of namespace {namespace}" if namespace else ""))


async def _letters(session: Session, namespace: str | None) -> AsyncIterator[StoredLetter]:
    async for stored in session.scan(DEAD, f"{_POD_PREFIX}>"):
        letter = StoredLetter.of(stored)
        if namespace is None or (letter.pod is not None and letter.pod.namespace == namespace):
            yield letter


def list_lines(letters: list[StoredLetter], now: datetime, *, rows: int | None) -> Iterator[RenderableType]:
    """A table of the newest ``rows`` letters; ``None`` is all."""
    shown = letters[-(rows or len(letters)) :]
    yield letters_table(shown, now)
    yield from and_more(len(letters) - len(shown))


def letters_table(letters: list[StoredLetter], now: datetime) -> Table:
    table = new_table("NUMBER", "AGE", "FROM", "ABOUT", "REASON", numbers=("NUMBER", "AGE"))
    for one in letters:
        age = duration(max(0.0, (now - one.at).total_seconds()))
        service, reason = (one.letter.service, one.letter.reason) if one.letter else ("", "it cannot be decoded")
        table.add_row(*map(plain, (str(one.number), age, service, one.about, reason)))
    return table


def letter_json(one: StoredLetter, now: datetime) -> dict[str, object]:
    return {
        "number": one.number,
        "at": one.at,
        "age_seconds": (now - one.at).total_seconds(),
        "subject": one.subject,
        "pod": str(one.pod) if one.pod else None,
        "letter": one.letter,
    }


@app.command("show")
def show(
    letter: Letter,
    *,
    namespace: PodNamespace = None,
    output: Output = OutputFormat.TABLE,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """Print a dead letter: the error, its time, and the service.

    With the beginning of the message.
    """
    run_command(_show(letter, namespace, NatsServer(nats, nats_context), output))


async def _show(text: str, namespace: str | None, server: NatsServer, output: OutputFormat) -> None:
    async with open_session(server, name="dead", is_named=not output.is_document) as session:
        one = await find_letter(session, text, namespace)
        now = (await session.state(DEAD)).now
    if output.is_document:
        print_document(letter_json(one, now), output)
    else:
        print_rich(*letter_lines(one, now))


def letter_lines(one: StoredLetter, now: datetime) -> Iterator[RenderableType]:
    if one.letter is None:
        yield plain(f"{one.about}: dead letter {one.number} cannot be decoded")
        return
    yield plain(f"{one.about}: {one.letter.reason}")
    attempt = f", attempt {one.letter.attempt}" if one.letter.attempt else ""
    yield indented(f"by the {one.letter.service}, {ago(one.at, now)} at {clock(one.at)}{attempt}")
    yield indented(f"the message was on {one.letter.subject}")
    if one.letter.payload:
        yield from ("", plain("it begins with:"), indented(one.letter.payload))
    if one.pod is not None:
        yield from ("", plain(f"`berth dead retry {one.number}` tries the pod again, once the cause is fixed"))


async def find_letter(session: Session, text: str, namespace: str | None) -> StoredLetter:
    """The dead letter with this number, or the pod's last one.

    Raises:
        NotFoundError: there is no such letter.
        UsageError: the text is neither a number nor the name of a pod.
    """
    if text.isdecimal() and len(text) <= len(str(2**63)):
        number = int(text)
        async for stored in session.scan(DEAD, f"{_POD_PREFIX}>", after=max(0, number - 1)):
            if stored.sequence == number:
                return StoredLetter.of(stored)
            break
        raise NotFoundError(f"looking for dead letter {number}: not found (kept for a week)")
    name = parse_pod(text, namespace)
    stored_last = await session.last(DEAD, name.filter(DEAD))
    if stored_last is None:
        raise NotFoundError(f"looking for a dead letter of pod {str(name)!r}: not found (kept for a week)")
    return StoredLetter.of(stored_last)


@app.command("retry")
def retry(
    letter: Letter,
    *,
    namespace: PodNamespace = None,
    output: Output = OutputFormat.TABLE,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """Have the watcher try the pod again at once, without its back-off. Needs NATS's user `apply`, an admin's."""
    run_command(_retry(letter, namespace, NatsServer(nats, nats_context), output))


async def _retry(text: str, namespace: str | None, server: NatsServer, output: OutputFormat) -> None:
    async with open_admin_session(server, name="dead", is_named=not output.is_document) as session:
        one = await find_letter(session, text, namespace) if text.isdecimal() else None
        if one is not None and one.pod is None:
            raise NotFoundError(f"retrying dead letter {one.number}: it is about {one.about!r}, not about a pod")
        name = one.pod if one is not None and one.pod is not None else parse_pod(text, namespace)
        watcher = await leading_watcher(session)
        request = PodRequest(namespace=name.namespace, name=name.name)
        answer = await ask_watcher(session, watcher, RETRY, request, for_admins=True)
    if answer.detail is None:
        raise NotFoundError(
            f"retrying pod {str(name)!r}: it does not wait for berth: it is gone, placed, or cannot be decoded as it is"
        )
    if output.is_document:
        print_document({"pod": str(name), "retried": answer.retried, "was": answer.detail}, output)
    elif answer.retried:
        print_rich(f"{name} is tried again now: it was {_was(answer.detail)}")
    else:
        print_rich(*detail_lines(answer, answer.detail))
    if not answer.retried:
        raise NotFoundError(f"retrying pod {str(name)!r}: it is {_was(answer.detail)}, which a retry does not end")


def _was(detail: QueuedPodDetail) -> str:
    return {"backoff": "in back-off"}.get(detail.pod.queue, detail.pod.queue)
