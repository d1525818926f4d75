"""Recordings: what was on the bus, in a file that can be asked again. A replay does no I/O but reading that file."""
