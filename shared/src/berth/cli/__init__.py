"""The berth command."""
