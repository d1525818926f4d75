"""Attempts to bind a pod: the state of one, its steps through the plugins, suspects, and the order of all attempts."""
