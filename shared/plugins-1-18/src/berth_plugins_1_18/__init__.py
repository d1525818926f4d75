"""The plugins of kube-scheduler 1.18 that were removed since or have other formulas today."""
