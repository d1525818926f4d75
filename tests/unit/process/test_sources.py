"""The variables of services are those of the docs, with the same defaults."""

import re
from pathlib import Path

from berth.settings.sources import variables
from berth_metrics_collector.settings import CollectorSettings

PAGE = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
OF_THE_COLLECTOR = {variable.name: variable.default for variable in variables(CollectorSettings())}
ROW = re.compile(r"^\| `(BERTH_[A-Z_]+)` \| (?:`([^`]*)`)? ?\| \S.* \|$", re.MULTILINE)


def test_docs_list_every_variable_with_its_default_in_order():
    told = [(name, default) for name, default in ROW.findall(PAGE) if name not in OF_THE_COLLECTOR]
    assert told == [(variable.name, variable.default) for variable in variables()]


def test_the_docs_tell_of_the_collectors_own_variables():
    assert OF_THE_COLLECTOR["BERTH_COLLECTOR_INTERVAL"] == "15s"
    assert dict(ROW.findall(PAGE)).items() >= OF_THE_COLLECTOR.items()


def test_a_secret_may_stand_in_a_file_and_its_default_is_not_shown():
    found = {variable.name: variable for variable in variables()}
    assert found["BERTH_NATS_PASSWORD"].file == "BERTH_NATS_PASSWORD_FILE"
    assert found["BERTH_NATS_URL"].file == ""
    assert found["BERTH_IDENTITY"].default == ""
