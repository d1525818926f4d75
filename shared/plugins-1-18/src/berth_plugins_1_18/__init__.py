"""The plugins of kube-scheduler 1.18 that were removed later or have other formulas today."""
