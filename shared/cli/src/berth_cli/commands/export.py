"""``berth export``: writes a cluster's objects into a file, for ``berth simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from berth.exits import UsageError
from berth_cli.options import KubeconfigToRead, KubeContext, reporting_errors, run_command
from berth_cli.rendering import note, print_json
from berth_cli.simulate.live import read_cluster

app = typer.Typer()

Written = Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The file; - is standard output.")]


@app.command()
def export(*, output: Written = "-", kubeconfig: KubeconfigToRead = None, context: KubeContext = None) -> None:
    """Write a cluster's objects into a file, for berth simulate.

    All objects that a ranking reads, in one List, as kubectl get prints them.
    """
    read = run_command(read_cluster(kubeconfig, context))
    note(f"read {read.summary}")
    if output == "-":
        print_json(msgspec.Raw(read.objects), indent=0)
        return
    with reporting_errors():
        _write(output, read.objects)
    note(f"wrote {len(read.objects)} bytes to {output}")


def _write(output: str, data: bytes) -> None:
    try:
        Path(output).write_bytes(data)
    except OSError as error:
        raise UsageError(f"writing {output!r}: {error.strerror}") from error
