"""Let atheris choose the inputs of a target by the branches that they reach.

    python -m fuzz.by_coverage TARGET FOLDER

The folder is the corpus; the target's seeds are put there first. Further arguments are flags of libFuzzer. A checkout
has no atheris: `make fuzz` uses it where it is installed (CONTRIBUTING.md).
"""

from __future__ import annotations

import hashlib
import logging
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["berth"]):
    from fuzz.run import failure
    from fuzz.targets import TARGETS


def main() -> None:
    name, folder, *flags = sys.argv[1:]
    target = TARGETS[name]
    logging.disable()
    for seed in target.seeds:
        (Path(folder) / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)

    def one(data: bytes) -> None:
        if problem := failure(target, data):
            raise RuntimeError(problem)

    atheris.Setup([sys.argv[0], *flags, folder], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
