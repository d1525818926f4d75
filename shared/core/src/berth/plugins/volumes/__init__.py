"""The plugins for volumes, and what they share: claims and CSI migration."""
