"""KubeSchedulerConfiguration v1: types, strict decoding, defaults, plugin lists, validation.

All errors of a file are reported at once, each with its path.
"""
