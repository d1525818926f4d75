"""The built-in plugins, named as kube-scheduler's packages, and the map that registers them."""
