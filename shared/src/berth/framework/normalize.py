"""DefaultNormalizeScore: raw scores stretched to 0..100, the largest becoming 100 (or 0 when reversed)."""

from __future__ import annotations

from berth.framework.interface import MAX_SCORE, Scores


def default_normalize(scores: Scores, *, reverse: bool = False) -> Scores:
    """``100 * score / largest`` in whole numbers, counted from the other end when reversed.

    All scores 0: unchanged, or all 100 when reversed. Scores are 0 or more.
    """
    largest = int(scores.max(initial=0))
    if largest == 0:
        return scores + MAX_SCORE if reverse else scores
    stretched = MAX_SCORE * scores // largest
    return MAX_SCORE - stretched if reverse else stretched
