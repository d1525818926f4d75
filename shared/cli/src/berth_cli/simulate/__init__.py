"""Simulates the placement of pods on a cluster from files, without a bus or an API server."""
