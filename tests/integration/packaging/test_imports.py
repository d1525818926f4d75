"""What a command imports before it does anything: each library costs 0.05 to 0.3 s of CPU time at every start."""

import subprocess
import sys

import pytest

NATS, HTTP, LOGS, ARRAYS = "nats", "aiohttp", "structlog", "numpy"
SETTINGS = "from berth.settings.sources import read_settings"
PLUGINS = ("berth.plugins", "berth.profiles")
# A pod's last Decision explains it without these.
HEAVY = (*PLUGINS, "berth.framework.cycle", "berth.cluster.snapshot", "berth.kube", "yaml", "importlib.metadata")
REGISTRY = "from berth.plugins.registry import BUILT_IN"


def command(*names: str) -> str:
    return f"from berth_cli.app import app_with; app_with({names})"


def in_order(statement: str) -> list[str]:
    """The modules that an interpreter has after the statement, in the order of their imports."""
    program = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def imported(statement: str) -> set[str]:
    """The modules that an interpreter has after the statement."""
    return set(in_order(statement))


@pytest.mark.parametrize(
    ("statement", "unneeded"),
    [
        pytest.param(SETTINGS, {NATS, HTTP, LOGS, ARRAYS}, id="settings, which name presets"),
        pytest.param(REGISTRY, {NATS, HTTP, LOGS, "berth_plugins_1_18.scores"}, id="plugins of this release"),
        pytest.param(
            "import berth_binder.__main__; import berth.plugins.dynamicresources.plugin",
            {"berth.cel.selector", "berth.cel.program", "cel_expr_python", "re2"},
            id="a binder, until an expression is evaluated",
        ),
        pytest.param(
            "from berth.cel.selector import compile_selector; compile_selector('cel.bind(a, device.driver, a == a)')",
            {"cel_expr_python.ext", "re2", ARRAYS},
            id="an expression",
        ),
        pytest.param(
            "from berth_cli import app", {NATS, HTTP, LOGS, ARRAYS, "berth_cli.commands.up"}, id="the command"
        ),
        pytest.param(command("up"), {NATS, HTTP, LOGS}, id="up, until its servers start"),
        pytest.param(command("bus"), {NATS, HTTP, LOGS, ARRAYS}, id="bus permissions"),
        pytest.param(command("trace"), {NATS, HTTP, LOGS, ARRAYS}, id="trace, until it connects"),
        pytest.param(
            command("why", "queue"), {NATS, HTTP, LOGS, ARRAYS, *HEAVY}, id="why and queue, until they connect"
        ),
        pytest.param(command("top"), {NATS, HTTP, LOGS, *PLUGINS}, id="top, until it connects"),
        pytest.param(command("dead", "drain"), {NATS, HTTP, LOGS, ARRAYS}, id="dead and drain, until they connect"),
        pytest.param(
            "from berth_cli.bus import Settings, bus_of; bus_of(Settings())",
            {HTTP, ARRAYS, LOGS},
            id="a command's connection",
        ),
        pytest.param(command("plugin", "config", "simulate"), {NATS, HTTP, LOGS}, id="commands without a connection"),
    ],
)
def test_a_start_imports_no_library_that_it_does_not_need(statement, unneeded):
    assert not imported(statement) & unneeded


@pytest.mark.parametrize(
    "statement",
    [
        "import berth_watcher.__main__",
        "import berth_scorer.__main__",
        "import berth_binder.__main__",
        "import berth_metrics_collector.__main__",
        f"import berth_cli.__main__; {command('why')}",
    ],
)
def test_every_program_is_prepared_before_it_imports_numpy(statement):
    modules = in_order(statement)
    if ARRAYS in modules:
        assert modules.index("berth.bootstrap") < modules.index(ARRAYS)
    of_berth = [
        name for name in modules if name.startswith("berth.") and name not in {"berth_cli", "berth_cli.__main__"}
    ]
    assert of_berth[0] == "berth.bootstrap"


def test_why_imports_no_more_modules_than_an_answer_from_the_bus_needs():
    """Of a pod with a Decision; 681 modules and 0.7 s of CPU once."""
    loaded = imported(f"{command('why')}; from berth_cli.bus import Settings, bus_of; bus_of(Settings())")
    assert not loaded & {ARRAYS, HTTP, LOGS, *PLUGINS}
    assert len(loaded) <= 420
    assert len([name for name in loaded if name.startswith(("berth.", "berth_cli."))]) <= 73


def test_every_command_is_imported_for_the_help():
    modules = imported(command("plugin"))
    assert "berth_cli.commands.plugin" in modules
    assert "berth_cli.commands.up" not in modules
    program = [sys.executable, "-m", "berth_cli", "--help"]
    text = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout
    assert all(name in text for name in ("up", "run", "why", "trace", "top", "simulate", "bus", "config", "plugin"))


@pytest.mark.parametrize(
    ("service", "most", "without"),
    [
        pytest.param(
            "berth_metrics_collector",
            75,
            ("berth.plugins", "berth.profiles", "berth.framework", "berth.cluster", "berth.kube"),
            id="collector",
        ),
        pytest.param("berth_scorer", 222, ("berth.kube", "berth.leader"), id="scorer"),
    ],
)
def test_a_service_loads_what_it_runs(service, most, without):
    loaded = imported(f"import {service}.__main__")
    of_berth = sorted(name for name in loaded if name.partition(".")[0] == "berth")
    assert len(of_berth) <= most, of_berth
    assert not loaded & set(without)
    assert not {name for name in loaded if name.startswith(("berth_cli", "berth_sim", "berth_plugins"))}


def test_logs_load_no_library_for_tracebacks_and_leave_it_to_others():
    logs = "import berth.observability.logging"
    assert not imported(logs) & {"rich", "pygments"}
    assert {LOGS, "rich.table"} <= imported(f"{logs}; import rich.table")
    assert {LOGS, "rich.table"} <= imported(f"import rich.table; {logs}")
