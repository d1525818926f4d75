"""The API of the simulated cluster: objects, lists and watches, and kubectl's other endpoints."""
