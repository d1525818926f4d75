"""The state of a cluster as a scheduling cycle reads it: node columns and equivalence classes of pods. Pure."""
