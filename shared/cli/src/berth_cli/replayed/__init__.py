"""Results of `berth replay` as sentences and as a page: a pod's last Decision, and runs step by step."""
