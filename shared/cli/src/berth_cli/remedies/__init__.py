"""Advice for waiting pods: their requests beside the nodes' resources, and the changes that would let them fit."""
