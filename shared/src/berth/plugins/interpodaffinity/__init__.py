"""InterPodAffinity: pods that must, or would rather, be together with other pods or apart from them, by topology."""
