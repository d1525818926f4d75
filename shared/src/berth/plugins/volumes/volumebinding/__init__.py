"""VolumeBinding: a pod goes where its claims have, or can get, their volumes."""
