import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_sim.apiserver.kinds import EVENTS, NEW_EVENTS, NODES, PODS
from berth_sim.apiserver.status import StatusError
from berth_sim.apiserver.store import Store, Table

NAMES = st.sampled_from("abcd")
WRITES = st.lists(st.tuples(st.booleans(), NAMES), max_size=30)


def write(store: Store, name: str, **spec: object) -> int:
    return store.put(PODS, ("ns", name), {"metadata": {"name": name}, "spec": spec}).revision


def state(table: Table, revision: int | None = None) -> list[tuple[str, int]]:
    items = table.in_order() if revision is None else table.as_of(revision)
    return [(stored.key[1], stored.revision) for stored in items]


@given(WRITES)
def test_every_revision_of_the_history_can_be_listed_again(writes: list[tuple[bool, str]]):
    store = Store()
    table = store.table(PODS)
    states = {store.revision: state(table)}
    for is_removal, name in writes:
        if not is_removal:
            write(store, name)
        elif ("ns", name) in table.items:
            store.remove(PODS, ("ns", name))
        states[store.revision] = state(table)
    assert {revision: state(table, revision) for revision in states} == states


@given(WRITES, st.integers(0, 40))
def test_changes_since_a_revision_give_the_present_state(writes: list[tuple[bool, str]], at: int):
    store = Store()
    table = store.table(PODS)
    replica, start = {}, store.revision
    for number, (is_removal, name) in enumerate(writes):
        if not is_removal:
            write(store, name)
        elif ("ns", name) in table.items:
            store.remove(PODS, ("ns", name))
        if number == at:
            start, replica = store.revision, dict(table.items)
    for change in table.since(start):
        if change.after is None:
            del replica[change.key]
        else:
            replica[change.key] = change.after
    assert replica == table.items


def test_history_is_bounded_and_older_readers_are_expired():
    store = Store(history=2)
    revisions = [write(store, "a", number=number) for number in range(4)]
    assert len(store.table(PODS).since(revisions[1])) == 2
    with pytest.raises(StatusError) as caught:
        store.table(PODS).since(revisions[0])
    assert (caught.value.code, caught.value.reason) == (410, "Expired")
    with pytest.raises(StatusError):
        store.table(PODS).as_of(revisions[0])


def test_history_of_a_quiet_kind_outlives_that_of_a_busy_one():
    store = Store(history=2)
    start = store.revision
    store.put(NODES, ("", "n"), {"metadata": {"name": "n"}})
    for number in range(10):
        write(store, "a", number=number)
    assert [change.key for change in store.table(NODES).since(start)] == [("", "n")]


def test_compaction_expires_every_revision_but_the_present():
    store = Store()
    old, present = write(store, "a"), write(store, "b")
    store.compact()
    assert store.table(PODS).since(present) == []
    assert state(store.table(PODS), present) == [("a", old), ("b", present)]
    with pytest.raises(StatusError):
        store.table(PODS).since(old)


def test_object_is_encoded_once_per_revision():
    store = Store()
    write(store, "a")
    stored = store.table(PODS).items["ns", "a"]
    assert stored.body(PODS) is stored.body(PODS)
    decoded = msgspec.json.decode(stored.encoded(PODS))
    assert decoded == {"kind": "Pod", "apiVersion": "v1", **stored.value}


def test_event_is_encoded_in_the_requested_form():
    store = Store()
    stored = store.put(EVENTS, ("ns", "e"), {"metadata": {"name": "e"}, "message": "m", "involvedObject": {}})
    assert store.table(NEW_EVENTS) is store.table(EVENTS)
    assert msgspec.json.decode(stored.encoded(NEW_EVENTS))["note"] == "m"
    assert msgspec.json.decode(stored.encoded(EVENTS))["message"] == "m"
