"""NATS as berth uses it: the interface that the services see, and its implementation on nats-py."""
