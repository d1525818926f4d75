"""Plugins that kube-scheduler does not have."""
