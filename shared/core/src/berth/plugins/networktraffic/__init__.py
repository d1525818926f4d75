"""NetworkTraffic: prefers nodes with little network traffic, by live data from Prometheus."""
