"""Plugins that place pods by the CPU and memory that nodes really use, as the metrics collector has sampled it."""
