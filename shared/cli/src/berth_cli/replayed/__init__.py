"""What `berth replay` says of a recording, in words and as a page: a pod's last Decision, runs step by step."""
