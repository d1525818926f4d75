"""HTTP extenders: requests, answers, and the calls."""
