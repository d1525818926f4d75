"""Leader election: the Lease, the number of a term, and the session in which a leader leads."""
