"""NetworkTraffic: prefers nodes whose network carries little, by live data from Prometheus."""
