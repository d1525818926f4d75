"""From PENDING to RANKED: what a scorer has read, and what it answers. Pure: the scorer runs it, a replay again."""
