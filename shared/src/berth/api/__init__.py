"""What the services say to each other and to Kubernetes: objects, messages, identities. Pure types, no I/O."""
