"""What a person types: the berth command."""
