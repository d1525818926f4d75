"""The cluster as the reflectors show it: objects, what their changes are as cluster events, undecodable ones."""
