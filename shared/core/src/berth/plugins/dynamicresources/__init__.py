"""DynamicResources: allocates devices to ResourceClaims, as kube-scheduler's plugin of that name."""
