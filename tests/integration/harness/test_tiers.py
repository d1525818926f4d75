from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder where pytest runs with the plugin under test."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # saves a second per run
    pytester.plugins = ["harness.plugins.tiers"]
    return pytester


BREACHES = [
    pytest.param("import time\ndef test_it(): time.sleep(0.06)", "waits 0.06 s in real time", id="sleep"),
    pytest.param(
        "import asyncio\ndef test_it(): asyncio.run(asyncio.sleep(0.06))", "waits 0.06 s in real time", id="timer"
    ),
    pytest.param(
        "import time\ndef test_it():\n    for _ in range(60): time.sleep(0.001)",
        "waits 0.06 s in real time",
        id="many short sleeps",
    ),
    pytest.param(
        "import subprocess\ndef test_it(): subprocess.run(['true'], check=True)",
        "starts a process (*true*)",
        id="process",
    ),
    pytest.param("import os\ndef test_it(): os.fork() or os._exit(0)", "starts a process (os.fork)", id="fork"),
    pytest.param(
        "import socket\ndef test_it():\n    with socket.socket() as one: one.bind(('127.0.0.1', 0))",
        "opens a socket (socket.bind ('127.0.0.1', 0))",
        id="socket",
    ),
    pytest.param(
        "import pytest, time\n@pytest.fixture\ndef slow(): time.sleep(0.06)\ndef test_it(slow): pass",
        "waits 0.06 s in real time",
        id="in a fixture",
    ),
    pytest.param(
        "import threading, time\ndef test_it():\n    one = threading.Thread(target=time.sleep, args=(0.06,))\n"
        "    one.start(); one.join()",
        "waits 0.06 s in real time",
        id="in a thread",
    ),
]


@pytest.mark.parametrize(("module", "sentence"), BREACHES)
def test_a_fast_test_that_is_not_fast_fails_with_a_sentence(suite, module, sentence):
    suite.makepyfile(module)

    result = suite.runpytest_subprocess()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"a fast test {sentence}: move it to*"])


def test_a_slow_test_may_do_all_of_it(suite):
    suite.makepyfile(
        "import pytest, time\npytestmark = pytest.mark.slow\ndef test_it(): time.sleep(0.06)\n"
        "def test_other(tmp_path): __import__('subprocess').run(['true'], check=True)"
    )

    suite.runpytest_subprocess().assert_outcomes(passed=2)


def test_a_fast_test_may_give_way_and_cancel_timers(suite):
    suite.makepyfile(
        "import asyncio, time\n"
        "async def work():\n    async with asyncio.timeout(9): await asyncio.sleep(0)\n"
        "def test_it(): time.sleep(0); asyncio.run(work())"
    )

    suite.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_test_that_fails_by_itself_keeps_its_own_failure(suite):
    suite.makepyfile("import time\ndef test_it():\n    time.sleep(0.06)\n    assert not 'its own'")

    suite.runpytest_subprocess().stdout.fnmatch_lines(["*assert not 'its own'"])


def test_what_a_teardown_does_is_an_error(suite):
    suite.makepyfile(
        "import pytest, time\n@pytest.fixture\ndef one():\n    yield\n    time.sleep(0.06)\ndef test_it(one): pass"
    )

    suite.runpytest_subprocess().assert_outcomes(passed=1, errors=1)
