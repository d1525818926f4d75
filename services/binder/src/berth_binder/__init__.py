"""The binder: commits placements in order; the one service that writes Bindings."""
