"""A rule that is taken away, so that the simulation must miss it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

from simulation.simulate import Focus

Replacement = tuple[Any, str, Any]


@dataclass(frozen=True)
class Mutation:
    """One rule taken away."""

    rule: str
    """What is missing, and where the rule is."""
    seeds: int
    """Within how many seeds it must be found."""
    replace: Callable[[], list[Replacement]]
    """What is replaced: an owner, a name, the replacement. Called when the mutation begins."""
    focus: Focus | None = None
    _: KW_ONLY
    is_quick: bool = False
    """Whether it is looked for in every ``make test-all``."""

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The services are mutated inside the block."""
        replacements = self.replace()
        before = [(owner, name, owner.__dict__[name]) for owner, name, _ in replacements]
        for owner, name, value in replacements:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)
