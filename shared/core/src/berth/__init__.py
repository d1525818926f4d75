"""berth: a Kubernetes scheduler made of small services that meet on NATS."""

__version__ = "0.1.0"
