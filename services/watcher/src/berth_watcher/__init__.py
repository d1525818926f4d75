"""The watcher: mirrors the cluster onto the bus, owns the scheduling queue, releases pending pods in order."""
