"""The last Decisions and dead letters, with counts by outcome, profile and namespace and times by stage.

All of it is bounded: lines, bars, and names per bar.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from berth.api.pod import unix_seconds
from berth.bus.interface import StoredMessage, StreamState
from berth.errors import DecodeError
from berth.messages.attempts import DeadLetter, Outcome
from berth.messages.encoding import Message, decode
from berth.messages.groupattempts import group_named
from berth.messages.subjects import Attempt
from berth_cli.pods.timeline import reason_of_attempt

KEPT: Final = 1000  # Decisions that a page gets when it is opened
# Decisions per frame: at 1,000 a second a tick may come 0.4 s late without losing one. Of more, the newest are sent and
# the others counted.
MOST_IN_A_FRAME: Final = 500
DEAD_KEPT: Final = 50
# Decisions that are counted at the start, two seconds of reading at most: of a busier hour the later part is known.
HISTORY: Final = 20_000
BARS: Final = 60  # of a chart
WINDOW_SECONDS: Final = 60  # short enough to show bursts, and filled soon after a start
LONGER_SECONDS: Final = (900, 3600)
MOST_NAMES: Final = 200  # namespaces or profiles counted apart per bar; the rest is counted together
OTHERS: Final = "(others)"
NAMES_SHOWN: Final = 12
MOST_SAMPLES: Final = 4000  # bound pods whose times are kept for percentiles
TEXT_CHARACTERS: Final = 300
NAME_CHARACTERS: Final = 253


class DecidedAttempt(Message, frozen=True, kw_only=True):
    """Candidates are not decoded."""

    attempt: str
    profile: str
    outcome: Outcome
    namespace: str
    pod: str
    uid: str
    node: str = ""
    reason: str = ""
    message: str = ""
    asked_at: datetime | None = None
    ranked_at: datetime | None = None


class DecisionLine(msgspec.Struct, frozen=True, array_like=True):
    """A Decision on the page. Times are Unix seconds of NATS's clock; ``created`` has whole seconds.

    ``tries`` is the number of the attempt in the watcher's term; ``None``: unknown.
    """

    at: float
    namespace: str
    pod: str
    profile: str
    outcome: str
    node: str
    text: str
    created: float | None
    asked: float | None
    ranked: float | None
    tries: int | None


class DeadLine(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter on the page. ``sequence`` is its number in the stream."""

    at: float
    subject: str
    service: str
    reason: str
    sequence: int


class DeadKept(msgspec.Struct, frozen=True, kw_only=True):
    letters: int = 0
    first: int = 0


class StageTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a stage: the median and the 99th percentile."""

    p50: float
    p99: float


class DecisionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Counts over ``seconds`` from ``begin`` on, in bars of ``step`` seconds. Times are Unix seconds.

    ``since``: from when on Decisions are known, later than ``begin`` if older ones were not read or have left NATS.
    ``series``: per outcome the number in each bar, oldest first. ``repeated``: Decisions on pods decided before.
    ``bound``: the pods with stage times. ``waited``: whole seconds, the precision of a pod's creation time.
    """

    seconds: int
    step: int
    begin: float
    since: float
    outcomes: dict[str, int]
    profiles: dict[str, int]
    namespaces: dict[str, int]
    series: dict[str, list[int]]
    repeated: int
    bound: int
    waited: StageTimes | None
    ranked: StageTimes | None
    decided: StageTimes | None


# Unix time of a Decision, and its stage times.
StageSeconds = tuple[float, float | None, float | None, float | None]


@dataclass(slots=True)
class _Bar:
    outcomes: Counter[str] = field(default_factory=Counter)
    profiles: Counter[str] = field(default_factory=Counter)
    namespaces: Counter[str] = field(default_factory=Counter)
    repeated: int = 0


class Bars:
    """Decisions counted in the last ``number`` bars of ``step`` seconds."""

    def __init__(self, step: int, number: int = BARS) -> None:
        self._step = step
        self._number = number
        self._bars: dict[int, _Bar] = {}

    def count(self, at: float, decided: DecidedAttempt, *, is_repeated: bool) -> None:
        place = int(at) // self._step
        bar = self._bars.get(place)
        if bar is None:
            if len(self._bars) > 2 * self._number:
                del self._bars[min(self._bars)]
            bar = self._bars[place] = _Bar()
        bar.outcomes[decided.outcome] += 1
        _count_name(bar.profiles, decided.profile)
        _count_name(bar.namespaces, decided.namespace)
        bar.repeated += is_repeated

    def figures(self, end: int, times: Iterable[StageSeconds], known_from: float) -> DecisionFigures:
        """Counts of the bars that begin before ``end``, in Unix seconds."""
        last = (end - 1) // self._step
        first = last + 1 - self._number
        begin = float(first * self._step)
        for place in [one for one in self._bars if one < first]:
            del self._bars[place]
        counted = [bar for place, bar in self._bars.items() if place <= last]
        outcomes = _sum(bar.outcomes for bar in counted)
        timed = [each for each in times if each[0] >= begin]
        return DecisionFigures(
            seconds=self._number * self._step,
            step=self._step,
            begin=begin,
            since=max(begin, min(known_from, end)),
            outcomes=dict(outcomes),
            profiles=_most(_sum(bar.profiles for bar in counted)),
            namespaces=_most(_sum(bar.namespaces for bar in counted)),
            series={name: self._series(name, first) for name in outcomes},
            repeated=sum(bar.repeated for bar in counted),
            bound=len(timed),
            waited=_percentiles([each[1] for each in timed]),
            ranked=_percentiles([each[2] for each in timed]),
            decided=_percentiles([each[3] for each in timed]),
        )

    def _series(self, outcome: str, first: int) -> list[int]:
        nothing = _Bar()
        return [self._bars.get(first + i, nothing).outcomes[outcome] for i in range(self._number)]


# A pod's creationTimestamp by its uid; None if the mirror lacks the pod.
CreationOf = Callable[[str], str | None]


class DecisionLog:
    """Decisions as they arrive, and the lines that pages have not received yet.

    ``lacks_older``: there were older Decisions than the first.
    """

    def __init__(self, bars: Sequence[Bars] = (), *, lacks_older: bool = False) -> None:
        self.unreadable = 0
        self._lines: deque[DecisionLine] = deque(maxlen=KEPT)
        self._arrived: deque[tuple[float, DecidedAttempt]] = deque(maxlen=KEPT)
        self._held: deque[tuple[float, DecidedAttempt]] = deque(maxlen=KEPT)
        self._dropped = 0
        self._bars = bars or [Bars(seconds // BARS) for seconds in (WINDOW_SECONDS, *LONGER_SECONDS)]
        self._times: deque[StageSeconds] = deque(maxlen=MOST_SAMPLES)
        self._known_from = math.inf if lacks_older else 0.0

    def add(self, stored: StoredMessage) -> None:
        try:
            decided = decode(stored.data, DecidedAttempt)
            at = stored.time.timestamp()
            for time in (decided.asked_at, decided.ranked_at):
                _ = time and time.timestamp()  # Some dates have no Unix time.
        except (DecodeError, OverflowError, ValueError):
            self.unreadable += 1
            return
        if decided.outcome is Outcome.BOUND and group_named(decided.namespace, decided.pod) is not None:
            return  # its members have Decisions of their own
        self._dropped += len(self._arrived) == KEPT
        self._arrived.append((at, decided))
        self._known_from = min(self._known_from, at)
        is_repeated = (_number_of(decided.attempt) or 1) > 1
        for bars in self._bars:
            bars.count(at, decided, is_repeated=is_repeated)

    def lines(self) -> list[DecisionLine]:
        """The last lines made by :meth:`new_lines`."""
        return list(self._lines)

    def new_lines(self, creation_of: CreationOf) -> tuple[list[DecisionLine], int]:
        """The lines since the last call, and the number of those left out.

        A Decision is held for one call, until the mirror has its pod.
        """
        ready, self._held, self._arrived = self._held, self._arrived, deque(maxlen=KEPT)
        left_out, self._dropped = self._dropped + max(0, len(ready) - MOST_IN_A_FRAME), 0
        lines = [_line_of(at, decided, creation_of) for at, decided in ready]
        self._lines.extend(lines)
        for line in lines:
            if line.outcome == Outcome.BOUND:
                self._times.append((line.at, *_stage_seconds(line)))
        return lines[-MOST_IN_A_FRAME:], left_out

    def figures(self, end: float) -> DecisionFigures:
        """Counts up to a time on NATS's clock, without its second, which is not over."""
        return self._bars[0].figures(int(end), self._times, self._known_from)

    def longer(self, now: float) -> list[DecisionFigures]:
        """Counts of the last 15 minutes and of the last hour, with the present bar."""
        return [bars.figures(int(now) + 1, self._times, self._known_from) for bars in self._bars[1:]]


class DeadLetters:
    """The last dead letters that NATS keeps."""

    def __init__(self) -> None:
        self.kept = DeadKept()
        self._counted_to = 0
        self._sent = self.kept
        self._lines: deque[DeadLine] = deque(maxlen=DEAD_KEPT)
        self._new: deque[DeadLine] = deque(maxlen=DEAD_KEPT)

    def add(self, stored: StoredMessage) -> None:
        """An undecodable dead letter is shown as such."""
        try:
            letter = decode(stored.data, DeadLetter)
            subject, service, reason = letter.subject, letter.service, letter.reason
        except DecodeError as error:
            subject, service, reason = stored.subject, "", str(error)
        texts = _cut(subject), _cut(service), _cut(reason)
        line = DeadLine(stored.time.timestamp(), *texts, stored.sequence)
        self._lines.append(line)
        self._new.append(line)
        if stored.sequence > self._counted_to:  # One more than the stream had at the last look.
            self._counted_to = stored.sequence
            self.kept = DeadKept(letters=self.kept.letters + 1, first=self.kept.first)

    def looked_at(self, state: StreamState) -> None:
        """The stream has exactly these letters."""
        first = state.first_sequence if state.messages else state.last_sequence + 1
        since = sum(line.sequence > state.last_sequence for line in self._lines)  # they came after the answer was made
        self._counted_to = max(self._counted_to, state.last_sequence)
        self.kept = DeadKept(letters=state.messages + since, first=first)
        for lines in (self._lines, self._new):
            while lines and lines[0].sequence < first:
                lines.popleft()

    def lines(self) -> list[DeadLine]:
        return list(self._lines)

    def new_lines(self) -> list[DeadLine]:
        new = list(self._new)
        self._new.clear()
        return new

    def changed_kept(self) -> DeadKept | None:
        if self.kept == self._sent:
            return None
        self._sent = self.kept
        return self.kept


def _line_of(at: float, decided: DecidedAttempt, creation_of: CreationOf) -> DecisionLine:
    created = creation_of(decided.uid)
    return DecisionLine(
        at=at,
        namespace=decided.namespace[:NAME_CHARACTERS],
        pod=decided.pod[:NAME_CHARACTERS],
        profile=decided.profile[:NAME_CHARACTERS],
        outcome=decided.outcome,
        node=decided.node[:NAME_CHARACTERS],
        text=_cut(reason_of_attempt(decided.reason, decided.message)),
        created=None if created is None or (time := unix_seconds(created)) <= 0 else time,
        asked=decided.asked_at.timestamp() if decided.asked_at else None,
        ranked=decided.ranked_at.timestamp() if decided.ranked_at else None,
        tries=_number_of(decided.attempt),
    )


def _stage_seconds(line: DecisionLine) -> tuple[float | None, float | None, float | None]:
    return (
        None if (waited := _between(line.created, line.asked)) is None else float(int(waited)),
        _between(line.asked, line.ranked),
        _between(line.ranked, line.at),
    )


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else max(0.0, end - begin)


def _number_of(attempt: str) -> int | None:
    try:
        return Attempt.parse(attempt).n
    except DecodeError:
        return None


def _count_name(counts: Counter[str], name: str) -> None:
    name = name[:NAME_CHARACTERS]
    counts[name if name in counts or len(counts) < MOST_NAMES else OTHERS] += 1


def _sum(counts: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total


def _most(counts: Counter[str]) -> dict[str, int]:
    shown = dict(counts.most_common(NAMES_SHOWN))
    rest = counts.total() - sum(shown.values())
    return {**shown, **({OTHERS: shown.get(OTHERS, 0) + rest} if rest else {})}


def _percentiles(values: Sequence[float | None]) -> StageTimes | None:
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return StageTimes(p50=known[len(known) // 2], p99=known[min(len(known) - 1, len(known) * 99 // 100)])


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS else f"{text[:TEXT_CHARACTERS]}..."
