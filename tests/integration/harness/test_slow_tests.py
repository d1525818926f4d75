"""`.ci/slow-tests`, with a Makefile whose test-slow runs the tests of a folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAKEFILE = f"""
test-slow:
\t{sys.executable} -m pytest -p xdist.plugin -p harness.plugins.leftover_processes -p harness.plugins.failed_tests \
  -p no:cacheprovider -n $(or $(WORKERS),1) $(ARGS)
"""
OF_MAKE = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "WORKERS")
FAILS_ONCE = """
    import pathlib, pytest
    @pytest.mark.parametrize("word", {words})
    def test_unsteady(word):
        again = pathlib.Path(f"again-{{word}}")
        if not again.exists():
            again.touch()
            raise AssertionError
    def test_steady():
        with open("steady", "a") as runs:
            print(file=runs)
"""
FAILS = "def test_it(): raise AssertionError"
LEAVES_A_PROCESS = "import subprocess\ndef test_it(): subprocess.Popen(['/bin/sleep', '300'])"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # saves a second per run
    (pytester.path / "Makefile").write_text(MAKEFILE)
    return pytester


def slow_tests(suite: pytest.Pytester) -> subprocess.CompletedProcess[str]:
    # Of the make that runs this test nothing is inherited: its options and ARGS name files of its own run.
    environment = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    command = [ROOT / ".ci/slow-tests"]
    return subprocess.run(command, cwd=suite.path, env=environment, capture_output=True, text=True, check=False)


def test_the_tests_that_failed_run_once_more_and_are_listed(suite: pytest.Pytester):
    suite.makepyfile(FAILS_ONCE.format(words=["one", "two words", "a::b"]))

    done = slow_tests(suite)

    assert done.returncode == 0, done.stdout
    file = "test_the_tests_that_failed_run_once_more_and_are_listed.py"
    assert done.stdout.splitlines()[-3:] == [
        f"unsteady: {file}::test_unsteady[{word}]" for word in ("one", "two words", "a::b")
    ]
    assert (suite.path / "steady").read_text() == "\n"


@pytest.mark.parametrize(
    ("files", "tries"),
    [
        pytest.param({"test_many": FAILS_ONCE.format(words=list("abcdef"))}, 1, id="more than five fail"),
        pytest.param({"test_one": FAILS}, 2, id="one fails twice"),
        pytest.param(
            {"test_one": FAILS_ONCE.format(words=["a"]), "test_two": LEAVES_A_PROCESS}, 1, id="a process is left"
        ),
    ],
)
def test_other_failures_stay_failures(suite: pytest.Pytester, files: dict[str, str], tries: int):
    suite.makepyfile(**files)

    done = slow_tests(suite)

    assert done.returncode != 0
    assert done.stdout.count("test session starts") == tries
    assert "unsteady" not in done.stdout.splitlines()[-1]
