"""A picture of a terminal (SVG) from what a command has printed, with its colours.

    export COLUMNS=104 FORCE_COLOR=1
    berth why default/web-1 | .venv/bin/python docs/generate/picture.py '$ berth why default/web-1' > why.svg

docs/pictures/why.svg was made so, on `berth up --scorers 2 --nodes 12` with 20 pods before web-1, and
`berth trace default/web-1` after it.
"""

from __future__ import annotations

import re
import sys
from io import StringIO

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

WIDTH = 104
FONTS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
"""They would be fetched from elsewhere; every system has a font of equal widths."""


def picture(command: str, printed: str) -> str:
    """The SVG of a terminal in which the command was typed."""
    console = Console(width=WIDTH, record=True, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(command, style="bold"))
    console.print(Text.from_ansi(printed.rstrip()))
    form = FONTS.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code, monospace", "Fira Code, Menlo, Consolas, monospace")
    return console.export_svg(title="berth", code_format=form, unique_id="berth")


if __name__ == "__main__":
    sys.stdout.write(picture(sys.argv[1], sys.stdin.read()))
