"""Attempts to bind a pod: the state of one, what is decided, and which message or attempt goes on next."""
