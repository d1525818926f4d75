"""What can be wrong with an expression, before and while it is evaluated."""

from __future__ import annotations

from berth.errors import PermanentError


class CELError(PermanentError):
    """An expression that gives no answer. ``reason`` is kube-scheduler's text."""

    def __init__(self, expression: str, reason: str) -> None:
        super().__init__(f"CEL expression {expression!r}: {reason}")
        self.expression = expression
        self.reason = reason


class CompileError(CELError):
    """The API server refuses it too: grammar, an unknown name, types, a result that is no bool, length, or cost."""


class UnsupportedError(CompileError):
    """Valid CEL that berth does not evaluate."""


class EvaluationError(CELError):
    """It fails on this device; kube-scheduler says ``CEL runtime error: <reason>``."""


class CostLimitError(EvaluationError):
    """Its evaluation on this device costs more than Kubernetes allows."""
