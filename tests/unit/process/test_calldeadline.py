"""A call that takes too long is ended from within, wherever in Python it hangs, and nothing else is."""

import signal
import threading
import time
from datetime import timedelta

import pytest

from berth.framework.plugincalls import OutOfTime
from berth.profiles.installed import CallDeadline

SHORT = timedelta(milliseconds=20)


def spin() -> None:
    while True:
        pass


def sleep() -> None:
    time.sleep(60)


def swallow_exceptions() -> None:
    while True:
        try:
            spin()
        except Exception:  # noqa: BLE001, S112 - what a careless plugin does
            continue


def swallow_everything_once() -> None:
    try:
        spin()
    except BaseException:  # noqa: BLE001 - what a reckless plugin does
        spin()


@pytest.mark.parametrize("work", [spin, sleep, swallow_exceptions, swallow_everything_once])
def test_work_that_hangs_is_ended(work):
    began = time.monotonic()
    with pytest.raises(OutOfTime, match=r"took longer than 0\.02 s"):
        CallDeadline(SHORT)(work)
    assert time.monotonic() - began < 5


def test_work_that_is_done_in_time_is_left_alone_and_no_alarm_rings_later():
    deadline = CallDeadline(SHORT)
    assert deadline(lambda: 7) == 7
    ends = time.monotonic() + 3 * SHORT.total_seconds()
    while time.monotonic() < ends:
        pass  # an alarm that was left behind would end this loop


def test_a_call_within_a_call_shares_its_deadline():
    deadline = CallDeadline(SHORT)

    def many() -> None:
        while True:
            deadline(lambda: time.sleep(0.001))

    with pytest.raises(OutOfTime):
        deadline(many)


def test_what_the_work_raises_comes_through():
    with pytest.raises(KeyError):
        CallDeadline(SHORT)(lambda: {}["x"])


def test_whoever_uses_the_alarm_besides_finds_it_as_it_was():
    handler_before, (left_before, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    CallDeadline(SHORT)(lambda: None)
    assert signal.getsignal(signal.SIGALRM) is handler_before
    left = signal.getitimer(signal.ITIMER_REAL)[0]
    assert (left > 0) == (left_before > 0)
    assert abs(left - left_before) < 1


def test_in_another_thread_work_is_only_run():
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(CallDeadline(SHORT)(lambda: 7)))
    thread.start()
    thread.join()
    assert results == [7]
