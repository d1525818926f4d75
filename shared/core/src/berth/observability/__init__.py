"""Logs, metrics, health and traces of a service process."""
