"""The plugins for volumes, with their shared claims and CSI migration."""
