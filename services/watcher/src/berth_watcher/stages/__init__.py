"""What moves pods and groups between the stages of the queue: their own changes, Decisions, and reviews of groups."""
