"""The API of the simulated cluster: objects, their lists and watches, and what kubectl asks besides."""
