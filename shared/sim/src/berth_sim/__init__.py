"""A simulated cluster: an HTTP server that behaves as kube-apiserver, with simulated nodes and pods."""
