"""What commands say about pods: their decisions, their way through the stages, and what they wait for."""
