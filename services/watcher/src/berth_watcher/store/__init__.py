"""The cluster as the reflectors show it: objects, the cluster events of their changes, undecodable objects."""
