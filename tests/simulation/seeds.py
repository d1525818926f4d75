"""Seeds that have found something, each with what it was. They are run in every ``make test``.

What a seed does follows from the order in which the script draws from its chance: a change of the script gives a seed
another meaning, and these sentences are then history. Look for another seed with a mutation that brings the fault back.
"""

from __future__ import annotations

from typing import Final

KEPT: Final[dict[int, str]] = {
    4: "NATS did not answer while a service verified its streams, or the disk was full while a watcher created them: "
    "the service ended with an error instead of asking again (sessions).",
    38: "The same, after the store was lost.",
}
