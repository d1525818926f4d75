"""Leader election: the Lease, the elector, the number of a leadership, and the loop that leads."""
