from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
BREACHES = """
    import asyncio, os, pytest, socket, subprocess, threading, time

    def test_sleep(): time.sleep(0.06)
    def test_many_short_sleeps():
        for _ in range(60): time.sleep(0.001)
    def test_timer(): asyncio.run(asyncio.sleep(0.06))
    def test_thread():
        thread = threading.Thread(target=time.sleep, args=(0.06,))
        thread.start()
        thread.join()
    def test_process(): subprocess.run(["true"], check=True)
    def test_fork(): os.fork() or os._exit(0)
    def test_socket():
        with socket.socket() as one: one.bind(("127.0.0.1", 0))

    @pytest.fixture
    def slow(): time.sleep(0.06)
    def test_fixture(slow): pass
"""
SENTENCES = [
    *["a fast test waits 0.0? s in real time: move it to tests/integration, give it a clock*"] * 4,
    "a fast test starts a process (*true*): move it*",
    "a fast test starts a process (os.fork): move it*",
    "a fast test opens a socket (socket.bind ('127.0.0.1', 0)): move it*",
    "a fast test waits 0.0? s in real time: move it*",
]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder where pytest runs with the plugin under test."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # saves a second per run
    pytester.plugins = ["harness.plugins.tiers"]
    return pytester


def test_a_fast_test_that_waits_or_starts_a_process_or_opens_a_socket_fails_with_a_sentence(suite):
    suite.makepyfile(BREACHES)

    result = suite.runpytest_subprocess()

    result.assert_outcomes(failed=len(SENTENCES))
    result.stdout.fnmatch_lines(SENTENCES)


def test_a_slow_test_may_do_all_of_it(suite):
    suite.makepyfile(f"{BREACHES}\n    pytestmark = pytest.mark.slow")

    suite.runpytest_subprocess().assert_outcomes(passed=len(SENTENCES))


def test_a_fast_test_may_give_way_and_cancel_timers(suite):
    suite.makepyfile(
        "import asyncio, time\n"
        "async def work():\n    async with asyncio.timeout(9): await asyncio.sleep(0)\n"
        "def test_it(): time.sleep(0); asyncio.run(work())"
    )

    suite.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_test_keeps_its_own_failure_and_what_a_teardown_does_is_an_error(suite):
    suite.makepyfile(
        "import pytest, time\n"
        "def test_it():\n    time.sleep(0.06)\n    assert not 'its own'\n"
        "@pytest.fixture\ndef late():\n    yield\n    time.sleep(0.06)\n"
        "def test_other(late): pass"
    )

    result = suite.runpytest_subprocess()

    result.assert_outcomes(failed=1, passed=1, errors=1)
    result.stdout.fnmatch_lines(["a fast test waits 0.0? s*", "*assert not 'its own'"])
