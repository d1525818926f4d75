"""What every service process has: settings, logging, metrics, health, life cycle."""
