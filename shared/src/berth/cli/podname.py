"""A pod as people name it: ``namespace/name``, or the name alone in the namespace ``default``."""

from __future__ import annotations

from dataclasses import dataclass

from berth.api.subjects import PREFIX, escape_dotted, escape_token
from berth.service.exits import UsageError

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodName:
    """Which pod a command is about."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def filter(self, stage: str) -> str:
        """The subjects of the pod's messages of a stage (``*``: of all), whichever profile serves it."""
        return f"{PREFIX}.{stage}.*.{escape_token(self.namespace)}.{escape_dotted(self.name)}"


def parse_pod(text: str) -> PodName:
    """Read what was typed.

    Raises:
        UsageError: it is no pod's name.
    """
    namespace, slash, name = text.rpartition("/")
    if not name or (slash and not namespace) or "/" in namespace:
        raise UsageError(f"reading the pod {text!r}: want NAMESPACE/POD, or POD in the namespace {DEFAULT_NAMESPACE}")
    return PodName(namespace=namespace or DEFAULT_NAMESPACE, name=name)
