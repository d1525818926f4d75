"""``berth console``: a page that shows the cluster, Decisions, pods and the queue live, read from the bus."""
