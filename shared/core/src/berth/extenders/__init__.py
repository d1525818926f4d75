"""HTTP extenders: what they are sent, what they answer, and the calls."""
