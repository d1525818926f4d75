"""Plans of groups: all members that are needed have a node on one Snapshot, or none has."""
