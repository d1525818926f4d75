"""An answer that the caller has no use for, as an error in one sentence."""

from __future__ import annotations

from datetime import timedelta

from berth.kube.errors import ApiRefusedError
from berth.kube.rbac import missing_right
from berth.kube.response import Response, StatusObject


def refusal(doing: str, response: Response) -> ApiRefusedError:
    """``doing`` is a participle with its object, such as ``listing 'pod'``."""
    failure = response.failure()
    return ApiRefusedError(
        f"{doing}: {response.status}: {explain(failure)}",
        status=response.status,
        retry_after=response.retry_after or timedelta(),
    )


def explain(failure: StatusObject) -> str:
    """The rule to add where a right is missing, otherwise the API's own words."""
    return missing_right(failure) or failure.message or failure.reason or "no reason given"
