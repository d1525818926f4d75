"""The binder commits placements in order. It is the only service that writes Bindings."""
