"""Events and PodScheduled conditions: the records of a Decision, their budget, and the requests."""
