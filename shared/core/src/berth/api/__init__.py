"""What the services exchange with each other and with Kubernetes: objects, messages, names. Pure types, no I/O."""
