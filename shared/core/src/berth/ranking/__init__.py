"""From PENDING to RANKED: a scorer's view and its answers. Pure: a scorer runs it, and a replay again."""
