"""InterPodAffinity: required and preferred pod affinity and anti-affinity, by topology."""
