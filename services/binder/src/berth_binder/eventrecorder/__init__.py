"""Events and PodScheduled conditions: what a Decision records on its pod, when it is sent, and the requests."""
