"""The plugins that look at volumes, and what they share: claims, and in-tree volumes as CSI drivers know them."""
