"""What a profile remembers must not keep a Snapshot that nobody uses any more: each reconnect makes a new one."""

import gc
import weakref

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.api.subjects import Attempt, Term, Uid
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import rank
from berth.process.configuration import profiles_of, read_configuration


def test_a_snapshot_that_is_ranked_no_more_is_forgotten():
    profile = profiles_of(read_configuration(None))["berth"]
    pod = Pod(metadata=ObjectMeta(name="web", namespace="default", uid="u"))
    attempt = Attempt(uid=Uid("u"), term=Term(1), n=1)
    first, second = Snapshot(), Snapshot()
    rank(pod, first, profile, attempt=attempt)
    forgotten = weakref.ref(first)
    rank(pod, second, profile, attempt=attempt)
    del first
    gc.collect()
    assert forgotten() is None
