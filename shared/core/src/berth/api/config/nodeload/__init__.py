"""Arguments of the plugins that place pods by measured CPU and memory, which the collector reads without plugins.

``args`` has NodeLoad's own, ``koordinator`` and ``trimaran`` those of LoadAwareScheduling, TargetLoadPacking and
LoadVariationRiskBalancing as these projects define them, ``plugins`` all four with what they ask of the collector.
"""
