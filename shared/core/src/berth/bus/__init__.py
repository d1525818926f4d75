"""The bus on NATS: the interface for services, and its implementation on nats-py."""
