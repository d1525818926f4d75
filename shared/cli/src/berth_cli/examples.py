"""Examples for the ``--help`` of each command, by its words. A test parses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "why": (
        "berth why default/web",
        "berth why web -n shop -o json",
        "berth why default/web --now --all",
        "berth why --group default/train",
    ),
    "trace": ("berth trace default/web", "berth trace default/web --follow", "berth trace --group default/train"),
    "top": ("berth top", "berth top --watch"),
    "console": ("berth console", "berth console --port 8091"),
    "queue list": ("berth queue", "berth queue list --queue unschedulable -n shop"),
    "queue why": ("berth queue why default/web",),
    "groups": ("berth groups", "berth groups -n shop --all -o json"),
    "devices": ("berth devices --node node-1", "berth devices --all -o json"),
    "up": (
        "berth up --nodes 12 --scorers 2",
        "berth up --nodes 3 --devices 4",
        "berth up --kubeconfig ~/.kube/config",
        "berth up --nodes 12 --shadow packed=packing.yaml",
    ),
    "run": ("berth run", "berth run --nodes 500 --pods 2000 --scorers 4"),
    "simulate": (
        "berth simulate --cluster cluster.json --pods new.yaml",
        "berth simulate --kubeconfig ~/.kube/config --pods release.yaml --must-fit",
        "kubectl get deploy web -o yaml | berth simulate --context prod --pods -",
    ),
    "export": ("berth export -o cluster.json", "berth export --context prod > cluster.json"),
    "dead list": ("berth dead", "berth dead list -n shop"),
    "dead show": ("berth dead show 5", "berth dead show default/web"),
    "dead retry": ("berth dead retry 5",),
    "drain": ("berth drain --timeout 60", "berth drain --stop"),
    "record": (
        "berth record -o incident.berth --for 30s",
        "berth record --keep 1h -o kept",
        "berth record --from kept --since 30m -o incident.berth",
    ),
    "replay": (
        "berth replay incident.berth",
        "berth replay incident.berth --pod default/web",
        "berth replay incident.berth --config packing.yaml --browse",
    ),
    "bus apply": ("berth bus apply --nats nats://host:4222",),
    "bus permissions": ("berth bus permissions > accounts.conf",),
    "config check": ("berth config check scheduler.yaml",),
    "config show": ("berth config show scheduler.yaml -o json",),
    "config providers": ("berth config providers", "berth config providers default"),
    "plugin list": ("berth plugin list",),
    "plugin new": ("berth plugin new PreferDisk",),
    "completion": ("source <(berth completion bash)", "berth completion fish > ~/.config/fish/completions/berth.fish"),
}


def epilog(*commands: str) -> str:
    """The end of the help of a command, or of a group of commands: one example of each."""
    most = 1 if len(commands) > 1 else None
    lines = "\n".join(f"  {example}" for words in commands for example in EXAMPLES[words][:most])
    return f"\b\nExamples:\n{lines}"  # \b keeps the lines apart
