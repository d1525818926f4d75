"""The metrics collector: keeps the live bandwidth of every node from Prometheus."""
