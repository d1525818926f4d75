"""A service's settings: which there are, and how flags, variables and the configuration file become them."""
