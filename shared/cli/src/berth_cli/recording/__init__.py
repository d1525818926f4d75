"""Recordings: a bus's messages in a file, and replays of its rankings. A replay only reads the file."""
