"""The scheduling queue: waiting pods, their order, when each is tried again, and answers about them."""
