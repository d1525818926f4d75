"""KubeSchedulerConfiguration v1 as berth reads it: types, strict decoding, defaults, plugin lists, validation.

Every error of a file is reported at once, each with its path.
"""
