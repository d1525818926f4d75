"""How a RANKED message is decided: the checks on the binder's cache, and the verdict."""
