"""The built-in plugins under the names of kube-scheduler's packages, and the literal map that registers them."""
