"""The arguments of InterPodAffinity and what is wrong with them."""

from __future__ import annotations

from typing import Final

from berth.plugins.factory import Args

_MAX_WEIGHT: Final = 100


class InterPodAffinityArgs(Args, frozen=True, kw_only=True):
    """``hardPodAffinityWeight``: what a required term of a placed pod counts with in scores, 0..100.

    ``ignorePreferredTermsOfExistingPods``: pods without preferences of their own are not scored.
    """

    hard_pod_affinity_weight: int = 1
    ignore_preferred_terms_of_existing_pods: bool = False


def validate(args: InterPodAffinityArgs, path: str) -> list[str]:
    """The weight must be one that a preference can have, or 0."""
    weight = args.hard_pod_affinity_weight
    return [] if 0 <= weight <= _MAX_WEIGHT else [f"{path}.hardPodAffinityWeight: want 0..100, got {weight}"]
