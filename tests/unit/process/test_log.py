"""The logger of bus and kube."""

import pytest
import structlog
from structlog.testing import capture_logs

from berth.log import get_logger


def test_lines_of_a_service_go_where_its_logs_go():
    with capture_logs() as logs:
        get_logger().info("pod bound", node="n1")
    assert logs == [{"event": "pod bound", "node": "n1", "log_level": "info"}]


@pytest.fixture
def unconfigured():
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("unconfigured")
def test_a_command_writes_warnings_to_standard_error(capsys: pytest.CaptureFixture[str]):
    get_logger().info("the API server answers again")
    get_logger().warning("cannot read from the API server", error="no answer")
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert "cannot read from the API server" in errors
    assert "answers again" not in errors
