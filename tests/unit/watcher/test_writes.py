"""How many writes of keys have no answer at once."""

from types import SimpleNamespace

from berth.bus.interface import BusLostError
from berth.lifecycle.coreloop import Inbox
from berth_watcher.effects import MOST_WRITES, EffectRunner
from berth_watcher.events import WriteKey

COUNT = 3 * MOST_WRITES


class Session:
    """NATS, which answers when it is told to."""

    def __init__(self):
        self.asked = []

    def put_soon(self, bucket, key, data, *, expected, on_answer):
        self.asked.append((key, on_answer))


def begin(count):
    session = Session()
    process = SimpleNamespace(settings=SimpleNamespace(log=SimpleNamespace(verbosity=0)))
    runner = EffectRunner(session=session, client=None, leadership=None, process=process, inbox=Inbox())
    for number in range(count):
        runner.carry_out(WriteKey(key=f"pod.{number}", data=b"", expected=0))
    return session


async def test_a_start_writes_so_many_keys_at_once_as_nats_lets_wait_for_a_stream():
    session = begin(COUNT)
    for answered in range(COUNT):
        assert len(session.asked) == min(answered + MOST_WRITES, COUNT)
        session.asked[answered][1](answered + 1)
    assert [key for key, _ in session.asked] == [f"pod.{number}" for number in range(COUNT)]


async def test_a_lost_connection_is_asked_for_no_more():
    session = begin(COUNT)
    session.asked[0][1](BusLostError("lost"))
    assert len(session.asked) == MOST_WRITES
