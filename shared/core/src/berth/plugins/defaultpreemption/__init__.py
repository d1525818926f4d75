"""DefaultPreemption: evicts pods of lower priority for a pod that fits nowhere."""
