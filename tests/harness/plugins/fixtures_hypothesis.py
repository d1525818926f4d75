"""The number of examples of property tests: enough to find bugs, few enough for every change."""

from __future__ import annotations

from hypothesis import settings

# No deadline for one example: machines that run several things at once are slow, not wrong. No database: a failure is
# printed with what to type to see it again, and nothing is left behind.
settings.register_profile("berth", max_examples=60, deadline=None, database=None)
settings.load_profile("berth")
