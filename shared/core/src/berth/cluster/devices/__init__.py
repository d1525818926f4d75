"""Devices of the cluster: the pools that slices make up, and who has which device."""
