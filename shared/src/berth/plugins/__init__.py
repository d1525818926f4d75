"""The built-in plugins, one file each, and the literal map that registers them."""
