"""The state of a cluster as a scheduling cycle reads it: columns of nodes, classes of pods. Pure."""
