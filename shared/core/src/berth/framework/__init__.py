"""The scheduling framework: the plugin contract, profiles and the cycle that runs them. Pure."""
