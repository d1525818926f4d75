from pathlib import Path

import pytest

from harness.plugins import left_out

TESTS = Path(__file__).parents[2]
NEEDS_KUBERNETES = """
    import pytest
    pytestmark = pytest.mark.requires("kubebuilder_assets")
    def test_one(): raise AssertionError("ran without its part")
    def test_two(): raise AssertionError("ran without its part")
"""


@pytest.fixture
def machine(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A machine without a control plane, where pytest runs with the plugin under test."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # saves a second per run
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.delenv(left_out.REQUIRE_ALL_VARIABLE, raising=False)
    pytester.plugins = ["harness.plugins.left_out", "xdist.plugin"]
    return pytester


def test_tests_without_their_part_are_listed_in_one_line_with_a_hint(machine):
    machine.makepyfile(test_cluster=NEEDS_KUBERNETES, test_other=NEEDS_KUBERNETES)

    result = machine.runpytest_subprocess()

    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines(["*= left out =*", "4 in .: KUBEBUILDER_ASSETS names no folder*setup-envtest*"])


def test_a_suite_without_its_part_fails_where_all_is_required(machine, monkeypatch):
    monkeypatch.setenv(left_out.REQUIRE_ALL_VARIABLE, "1")
    machine.makepyfile(test_cluster=NEEDS_KUBERNETES)

    result = machine.runpytest_subprocess()

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["left out, with BERTH_REQUIRE_ALL=1: KUBEBUILDER_ASSETS names no folder*"])


@pytest.mark.parametrize(
    "module",
    [
        pytest.param("import pytest; pytest.importorskip('no_such_module')", id="while collecting"),
        pytest.param("import pytest\ndef test_it(): pytest.skip('not today')", id="while running"),
        pytest.param("import pytest\n@pytest.mark.skip(reason='not today')\ndef test_it(): pass", id="by a mark"),
    ],
)
def test_no_other_skip_passes_where_all_is_required(machine, monkeypatch, module):
    monkeypatch.setenv(left_out.REQUIRE_ALL_VARIABLE, "1")
    machine.makepyfile(test_skipped=module)

    assert machine.runpytest_subprocess().ret in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)


def test_a_part_that_may_be_missing_is_left_out_where_all_is_required(machine, monkeypatch):
    monkeypatch.setenv(left_out.REQUIRE_ALL_VARIABLE, "1")
    monkeypatch.setenv(left_out.MAY_LACK_VARIABLE, "docker kubebuilder_assets")
    machine.makepyfile(
        test_cluster=NEEDS_KUBERNETES, test_skipped="import pytest\ndef test_it(): pytest.skip('not today')"
    )

    machine.runpytest_subprocess().assert_outcomes(skipped=2, failed=1)


def test_an_unavailable_image_is_listed_with_the_reason(machine, monkeypatch):
    (machine.path / "docker").write_text(
        "#!/bin/sh\ncase $1 in version) ;; pull) echo 'no such host' >&2; exit 1 ;; *) exit 1 ;; esac\n"
    )
    (machine.path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{machine.path}:/usr/bin:/bin")
    machine.makepyfile(test_k3s="import pytest\n@pytest.mark.requires('image:k3s:v1')\ndef test_it(): pass")

    result = machine.runpytest_subprocess()

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["1 in .: no image k3s:v1: *pulling it failed: docker pull*no such host"])


def test_an_expected_failure_is_not_left_out(machine, monkeypatch):
    monkeypatch.setenv(left_out.REQUIRE_ALL_VARIABLE, "1")
    machine.makepyfile("import pytest\n@pytest.mark.xfail\ndef test_it(): raise AssertionError")

    result = machine.runpytest_subprocess()

    result.assert_outcomes(xfailed=1)


def test_suites_left_out_by_parallel_workers_are_listed(machine):
    machine.makepyfile(test_cluster=NEEDS_KUBERNETES)

    result = machine.runpytest_subprocess("-n", "2")

    result.stdout.fnmatch_lines(["2 in .: KUBEBUILDER_ASSETS names no folder*"])


def test_an_unknown_part_fails_with_the_list_of_known_parts(machine):
    machine.makepyfile("import pytest\n@pytest.mark.requires('nats')\ndef test_it(): pass")

    result = machine.runpytest_subprocess()

    result.stdout.fnmatch_lines(
        ["requiring 'nats': want one of kubebuilder_assets, nats-server, docker, *, or image:NAME"]
    )


def test_a_test_with_its_part_present_runs(machine, monkeypatch):
    for name in ("etcd", "kube-apiserver"):
        (machine.path / name).touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(machine.path))
    machine.makepyfile("import pytest\n@pytest.mark.requires('kubebuilder_assets')\ndef test_it(): pass")

    machine.runpytest_subprocess().assert_outcomes(passed=1)
