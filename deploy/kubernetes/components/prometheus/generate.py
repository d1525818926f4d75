"""Write rules.yaml, the PrometheusRule of the alerts that deploy/compose/prometheus/rules has.

    python deploy/kubernetes/components/prometheus/generate.py

A rule file of Prometheus may have no other fields, so it cannot be an object of Kubernetes itself.
"""

# ruff: noqa: INP001 - a program, not part of a package

from __future__ import annotations

from pathlib import Path

import yaml

HERE = Path(__file__).parent
RULES = HERE.parents[2] / "compose/prometheus/rules/berth.yml"
HEAD = "# Written by generate.py from deploy/compose/prometheus/rules/berth.yml. Do not edit.\n"


def prometheus_rule() -> str:
    """The text of rules.yaml."""
    made = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "berth", "namespace": "berth"},
        "spec": yaml.safe_load(RULES.read_text(encoding="utf-8")),
    }
    return HEAD + yaml.safe_dump(made, sort_keys=False, width=120)


if __name__ == "__main__":
    (HERE / "rules.yaml").write_text(prometheus_rule(), encoding="utf-8")
