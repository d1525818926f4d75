"""Which consumers are declared."""

from berth.bus.settings import TopologySettings
from berth.bus.topology import PENDING, declared_consumer


def test_consumers_are_declared_by_name():
    settings = TopologySettings()
    scorer = declared_consumer(settings, PENDING, "scorer")
    binder = declared_consumer(settings, "RANKED", "binder-12")
    assert scorer is not None
    assert scorer.ack_wait == settings.scorer_ack_wait
    assert binder is not None
    assert binder.ack_wait == settings.binder_ack_wait
    assert declared_consumer(settings, PENDING, "binder-12") is None
