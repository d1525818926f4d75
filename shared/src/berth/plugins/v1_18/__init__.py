"""Plugins as kube-scheduler 1.18 had them: names that are gone since, and formulas that are others today."""
