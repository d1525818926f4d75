"""Client of the Kubernetes API: credentials, requests, informers."""
