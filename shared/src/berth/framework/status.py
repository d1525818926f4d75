"""What an extension point answers: a Status. A rejection is a value; exceptions are for bugs and I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Code(IntEnum):
    """The codes of the Kubernetes scheduling framework."""

    SUCCESS = 0
    ERROR = 1
    UNSCHEDULABLE = 2
    """Not here as things stand; evicting pods may help."""
    UNSCHEDULABLE_AND_UNRESOLVABLE = 3
    """Not here, and evicting pods does not help."""
    WAIT = 4
    SKIP = 5
    """The plugin has nothing to say about this pod: its Filter or Score is left out."""
    PENDING = 6


@dataclass(frozen=True, slots=True)
class Status:
    """A code and, unless it is success, the reasons in the words that kube-scheduler uses."""

    code: Code
    reasons: tuple[str, ...] = ()
    plugin: str = ""

    @classmethod
    def unschedulable(cls, *reasons: str) -> Status:
        """Not here as things stand; evicting pods may help."""
        return cls(Code.UNSCHEDULABLE, reasons)

    @classmethod
    def unresolvable(cls, *reasons: str) -> Status:
        """Not here, and evicting pods does not help."""
        return cls(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reasons)

    @classmethod
    def error(cls, *reasons: str) -> Status:
        """The question could not be answered."""
        return cls(Code.ERROR, reasons)

    @property
    def is_success(self) -> bool:
        """Whether the answer is yes."""
        return self.code is Code.SUCCESS

    @property
    def is_skip(self) -> bool:
        """Whether the plugin has nothing to say."""
        return self.code is Code.SKIP

    @property
    def is_rejection(self) -> bool:
        """Whether the answer is no, of either kind."""
        return self.code in (Code.UNSCHEDULABLE, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.PENDING)


SUCCESS = Status(Code.SUCCESS)
SKIP = Status(Code.SKIP)
