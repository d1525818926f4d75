"""What would be decided about given pods on a given cluster: no bus, no API server."""
