"""PodTopologySpread: spreads pods evenly over zones, hosts or other values of a node label."""
