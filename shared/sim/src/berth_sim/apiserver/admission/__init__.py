"""What the simulated API server makes of new and changed objects: defaults, and the rules that it holds."""
