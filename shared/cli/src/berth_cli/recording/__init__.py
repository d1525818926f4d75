"""Recordings: a bus's messages in a file, and replays of its rankings. A replay does no I/O but reading it."""
