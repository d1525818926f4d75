"""VolumeBinding: filters by a pod's claims, and has them bound before the pod."""
