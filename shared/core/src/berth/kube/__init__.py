"""The Kubernetes API as berth uses it: client, reflector, Lease election."""
