"""The configuration file with its profiles, and the installed plugins."""
