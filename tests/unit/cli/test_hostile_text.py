"""Nothing that others have written is obeyed by a terminal, and none of it can look like a line of berth's own."""

import io
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from rich.live import Live

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodSpec
from berth.bus.interface import ServiceInstance
from berth.messages.attempts import Candidate, DeadLetter, Decision, Outcome, Ranked, Rejection
from berth.messages.encoding import encode
from berth.messages.queue import Helping, QueueAnswer, QueuedPodDetail, WaitingPod
from berth_cli import rendering
from berth_cli.commands.dead import StoredLetter, letter_lines, letters_table
from berth_cli.commands.top import NodeLine, Overview, overview_lines
from berth_cli.commands.trace import TracePrinter
from berth_cli.options import OutputFormat, PodName
from berth_cli.pods.explain import decision_lines
from berth_cli.pods.finding import whose
from berth_cli.pods.lookup import ExplainedDecision
from berth_cli.pods.timeline import TracedMessage, as_json, stage_table, subject_table
from berth_cli.pods.waiting import detail_lines, queue_table
from berth_cli.rendering import note, plain, print_json, print_line, print_rich, print_yaml

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
EVIL = "a\x1b[2J\x1b]8;;http://evil\x07b\x9b1m\u202ec\nforged: line\r\x00[bold]"
"""Clears the screen, makes a link, turns the direction of text, and begins a line of its own."""
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
OWN_CODES = re.compile(r"\x1b\[[0-9;?]*[mhlKJHAG]|\r(?=[\n\x1b])")
"""What rich itself writes to a terminal: colours, the cursor."""

CANDIDATE = Candidate(node=EVIL, total=1, scores={EVIL: 1}, details={EVIL: EVIL})
DECISION = Decision(
    attempt=f"{EVIL}.1.1",
    epoch=1,
    outcome=Outcome.UNSCHEDULABLE,
    profile=EVIL,
    namespace=EVIL,
    pod=EVIL,
    uid=EVIL,
    node=EVIL,
    candidates=[CANDIDATE],
    weights={EVIL: 1},
    message=EVIL,
    reason=EVIL,
    rejections=[Rejection(plugin=EVIL, reason=EVIL, nodes=1, examples=[EVIL])],
    blockers=[EVIL],
    scorer=EVIL,
)
RANKED = Ranked(
    attempt=f"{EVIL}.1.1",
    profile=EVIL,
    pod=Pod(metadata=ObjectMeta(name=EVIL, namespace=EVIL, uid=EVIL)),
    scorer=EVIL,
    error=EVIL,
)
LETTER = DeadLetter(subject=EVIL, service=EVIL, reason=EVIL, payload=EVIL)
FOREIGN = PodSpec(scheduler_name=EVIL + "x", node_name=EVIL)
WAITING = WaitingPod(
    namespace=EVIL, name=EVIL, uid=EVIL, profile=EVIL, queue="backoff", stage="backoff", since=NOW, message=EVIL
)
QUEUED = QueuedPodDetail(
    pod=WAITING,
    failure=EVIL,
    awaited_versions={EVIL: 1},
    stalled_on=EVIL,
    helping=[Helping(plugin=EVIL, events=[EVIL], hinted=[])],
)
STORED_LETTER = StoredLetter(number=1, at=NOW, subject=EVIL, letter=LETTER, pod=PodName(namespace=EVIL, name=EVIL))
MESSAGES = [
    TracedMessage(at=1.0, subject=f"berth.{stage}.berth.default.{EVIL}", data=encode(message))
    for stage, message in (("ranked", RANKED), ("decision", DECISION), ("dead", LETTER))
]
OVERVIEW = Overview(
    now=NOW,
    source=EVIL,
    streams=[],
    services=[ServiceInstance(service=EVIL, identity=EVIL, version=EVIL, stats={EVIL: 1})],
    watermarks={EVIL: NOW},
    outcomes={EVIL: 1},
    window=timedelta(seconds=1),
    nodes=[NodeLine(name=EVIL, pods=1, cpu=(1, 1), memory=(1, 1))],
)
EXPLAINED = ExplainedDecision(decision=DECISION, at=NOW, now=NOW)


def check(text: str) -> None:
    shown = OWN_CODES.sub("", text)
    assert "forged" in shown
    assert not OBEYED.search(shown), repr(OBEYED.search(shown))
    assert not [line for line in shown.splitlines() if line.lstrip().startswith("forged")]


PRINTERS: dict[str, Any] = {
    "a line": lambda: print_line(EVIL),
    "an error": lambda: note(EVIL),
    "text": lambda: print_rich(EVIL),
    "why": lambda: print_rich(*decision_lines(EXPLAINED)),
    "trace": lambda: print_rich(stage_table(MESSAGES)),
    "trace -f": lambda: [TracePrinter(OutputFormat.TABLE).print(message) for message in MESSAGES],
    "queue": lambda: print_rich(queue_table(QueueAnswer(now=NOW, pods=[WAITING]))),
    "queue why": lambda: print_rich(*detail_lines(QueueAnswer(now=NOW), QUEUED)),
    "dead": lambda: print_rich(letters_table([STORED_LETTER], NOW)),
    "dead show": lambda: print_rich(*letter_lines(STORED_LETTER, NOW)),
    "whose": lambda: print_rich(plain(whose(msgspec.structs.replace(RANKED.pod, spec=FOREIGN), {EVIL}))),
    "subjects": lambda: print_rich(subject_table(MESSAGES)),
    "top": lambda: print_rich(*overview_lines(OVERVIEW, rows=None)),
}


@pytest.mark.parametrize("printer", PRINTERS)
def test_without_a_terminal(printer: str, capsys: pytest.CaptureFixture[str]):
    PRINTERS[printer]()
    done = capsys.readouterr()
    check(done.out + done.err)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("printer", PRINTERS)
def test_on_a_terminal(printer: str, monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "400")
    PRINTERS[printer]()
    shown = OWN_CODES.sub("", terminal.getvalue())
    assert "a\\x1b[2J" in shown
    assert not OBEYED.search(shown), repr(OBEYED.search(shown))


def test_live_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "400")
    with Live(console=rendering.open_console(), auto_refresh=False) as live:
        live.update(stage_table(MESSAGES), refresh=True)
    assert not OBEYED.search(OWN_CODES.sub("", terminal.getvalue()))


def test_json_has_the_text_in_jsons_own_form(capsys: pytest.CaptureFixture[str]):
    print_json([as_json(message, None) for message in MESSAGES] + [EVIL + "\U000e0041", msgspec.to_builtins(DECISION)])
    text = capsys.readouterr().out
    assert not OBEYED.search(text)
    assert json.loads(text)[-2] == EVIL + "\U000e0041"


def test_yaml_has_the_text_in_yamls_own_form(capsys: pytest.CaptureFixture[str]):
    print_yaml([EVIL + "\U000e0041", msgspec.to_builtins(DECISION)])
    text = capsys.readouterr().out
    assert not OBEYED.search(text)
    first, decision = yaml.safe_load(text)
    assert (first, decision["pod"]) == (EVIL + "\U000e0041", EVIL)


@pytest.mark.slow
def test_names_in_files_and_configurations(tmp_path: Path):
    name = json.dumps(EVIL)
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": EVIL}}
    spec = {"schedulerName": "berth", "volumes": [claim], "containers": [{"name": "c"}]}
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "with-a-claim"}, "spec": spec},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": EVIL}, "spec": {"schedulerName": "berth"}},
    ]
    (tmp_path / "pods.yaml").write_text("---\n" + "\n---\n".join(map(json.dumps, pods)))
    (tmp_path / "bad.yaml").write_text(json.dumps({**pods[1], "spec": {"schedulerName": EVIL}}))
    (tmp_path / "node.json").write_text(json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": EVIL}}))
    (tmp_path / "config.yaml").write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        f"{name}: 1\nprofiles: [{{schedulerName: {name}, plugins: {{score: {{enabled: [{{name: {name}}}]}}}}}}]\n"
    )
    for words in (
        ("simulate", "--cluster", "node.json", "--pods", "pods.yaml"),
        ("simulate", "--cluster", "node.json", "--pods", "bad.yaml"),
        ("config", "check", "config.yaml"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "berth_cli", *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        check(done.stdout + done.stderr)
