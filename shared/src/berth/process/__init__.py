"""What all service processes share: settings, logging, metrics, health, life cycle."""
