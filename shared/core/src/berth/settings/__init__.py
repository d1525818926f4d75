"""A service's settings, read from flags, variables and the configuration file."""
