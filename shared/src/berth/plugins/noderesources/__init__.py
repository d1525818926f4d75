"""NodeResourcesFit and NodeResourcesBalancedAllocation: what a pod requests against what a node has."""
