"""Kubernetes objects, trimmed to the fields that scheduling reads. Pure types, no I/O."""
