"""What to do with a RANKED message: the checks on the binder's cache, and the verdict that they lead to."""
