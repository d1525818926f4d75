"""NodeResourcesFit and NodeResourcesBalancedAllocation: requests of pods and allocatable of nodes."""
