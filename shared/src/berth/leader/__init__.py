"""Leading: the Lease, its election, the number of a leadership, and the loop in which a service leads."""
