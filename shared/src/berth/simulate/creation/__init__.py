"""What an API server makes of pods and claims that nobody created yet, as far as scheduling reads it. Pure."""
