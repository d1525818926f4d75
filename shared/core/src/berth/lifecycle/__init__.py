"""The life of a service process: start, sessions on the bus, the other services, shutdown."""
