"""Events and PodScheduled conditions of Decisions: their words, the order and rate of their requests, and sending."""
