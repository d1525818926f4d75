"""The life of a service process: start, sessions on the bus, other services, shutdown."""
