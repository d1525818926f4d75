"""Templates of a new plugin's package, which works unchanged."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import Final

_NAME: Final = re.compile(r"[A-Z][A-Za-z0-9]{1,60}")
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[0-9]+")

PYPROJECT: Final = Template("""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "berth-plugin-$folder"
version = "0.1.0"
description = "The plugin $name for berth"
requires-python = ">=3.11"
dependencies = ["berth-core"]

# berth finds it by this entry point: its name in a configuration, and its factory.
[project.entry-points."berth.plugins"]
$name = "$module:FACTORY"

[tool.hatch.build.targets.wheel]
include = ["$module.py"]
""")

MODULE: Final = Template('''\
"""$name: prefers nodes with a label.

Score: 100 for a node that has the label of the arguments, 0 for the others.
"""

from typing import Any, ClassVar

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.cluster.nodes import NodeInfo
from berth.framework.interface import Reads, ScorePlugin
from berth.framework.status import CycleState
from berth.plugins.factory import Args, PluginFactory, with_args

NAME = "$name"


class ${name}Args(Args, frozen=True, kw_only=True):
    """The arguments in a configuration's pluginConfig; each has a default."""

    label: str = "example.com/$folder"


class $name(ScorePlugin):
    """One instance serves one profile. State of one pod's cycle belongs into the CycleState."""

    name: ClassVar[str] = NAME
    # What score() reads: here the node's own object, so that berth may cache the score until that changes.
    # Without this line score() is called for each pod: always right, but slower.
    reads = Reads.NODE

    def __init__(self, args: ${name}Args) -> None:
        self._label = args.label

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """The score of the node for the pod, 0..100. FilterPlugin rejects nodes, RemedyPlugin says what would help."""
        return 100 if self._label in node.labels else 0


def validate(args: ${name}Args, path: str) -> list[str]:
    """All errors in the arguments, each with its path first; a configuration with any is rejected."""
    return [] if args.label else [f"{path}.label: want the key of a label, got ''"]


FACTORY = PluginFactory(
    name=NAME,
    points=(Point.SCORE,),
    build=with_args($name, ${name}Args),
    args_type=${name}Args,
    validate=validate,
)
''')

TEST: Final = Template('''\
"""$name in the whole scheduling cycle, without a cluster."""

from $module import FACTORY, ${name}Args

from berth.api.config.load import load
from berth.api.config.presets import DEFAULT
from berth.api.meta import ObjectMeta
from berth.api.node import Node, NodeStatus
from berth.api.pod import Pod
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import rank
from berth.framework.profile import build_profiles
from berth.messages.subjects import Attempt, Term, Uid
from berth.plugins.registry import BUILT_IN

CONFIGURATION = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: $folder
  plugins:
    multiPoint:
      enabled: [{name: $name}]
"""


def node(name: str, **labels: str) -> Node:
    room = NodeStatus(allocatable={"cpu": "4", "memory": "8Gi", "pods": "110"})
    return Node(metadata=ObjectMeta(name=name, labels=labels), status=room)


def ranked(*nodes: Node) -> dict[str, int]:
    """The plugin's score of each node, the best first."""
    known = {**BUILT_IN, FACTORY.name: FACTORY}
    profiles = build_profiles(load(CONFIGURATION, known=known, preset=DEFAULT), known)
    snapshot = Snapshot()
    for each in nodes:
        snapshot.set_node(each)
    pod = Pod(metadata=ObjectMeta(name="web", namespace="default", uid="1"))
    ranking = rank(pod, snapshot, profiles["$folder"], attempt=Attempt(uid=Uid("1"), term=Term(1), n=1))
    assert not ranking.error
    return {candidate.node: candidate.scores["$name"] for candidate in ranking.candidates}


def test_the_node_with_the_label_comes_first() -> None:
    label = ${name}Args().label
    assert ranked(node("a"), node("b", **{label: "yes"})) == {"b": 100, "a": 0}


def test_a_label_without_a_name_is_refused() -> None:
    assert FACTORY.validate(${name}Args(label=""), "args") == ["args.label: want the key of a label, got ''"]
''')

SCHEDULER: Final = Template("""\
# berth up --config scheduler.yaml: pods with schedulerName $folder are placed by $name.
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: $folder
  plugins:
    multiPoint: # at every extension point that the plugin has
      enabled:
      - name: $name
        weight: 10 # its scores count ten times; the default plugins score too
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageFiles:
    """Text by path below ``folder``."""

    folder: str
    texts: Mapping[str, str]


def name_problem(name: str) -> str:
    if _NAME.fullmatch(name) and not keyword.iskeyword(_words(name, "_")):
        return ""
    return f"naming the plugin {name!r}: want capitalized words without separators, such as FirstNode"


def files_of(name: str) -> PackageFiles:
    folder, module = _words(name, "-"), _words(name, "_")
    templates = {
        "pyproject.toml": PYPROJECT,
        f"{module}.py": MODULE,
        f"test_{module}.py": TEST,
        "scheduler.yaml": SCHEDULER,
    }
    words = {"name": name, "folder": folder, "module": module}
    return PackageFiles(folder=folder, texts={path: template.substitute(words) for path, template in templates.items()})


def _words(name: str, between: str) -> str:
    """FirstNode: first-node."""
    return between.join(_WORDS.findall(name)).lower()
