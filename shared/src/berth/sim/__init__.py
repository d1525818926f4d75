"""A simulated cluster: an HTTP server with the wire behaviour of kube-apiserver, and made-up nodes and pods."""
