"""berth: a Kubernetes scheduler made of small services that meet on NATS."""
