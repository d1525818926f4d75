"""What would help a pod that waits: its own request beside what the nodes have, and what would have to change where."""
