"""The commands of berth, one module each."""
