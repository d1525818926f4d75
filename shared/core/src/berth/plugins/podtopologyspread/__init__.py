"""PodTopologySpread: spreads pods evenly over zones, hosts or any other values of a node label."""
