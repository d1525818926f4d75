"""The controllers of the simulated cluster: Deployments, ReplicaSets, StatefulSets and Jobs become pods."""
