"""VolumeBinding: filters by the claims of a pod, and has them bound before the pod."""
