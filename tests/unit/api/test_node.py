"""Which tolerations match which taints."""

import pytest

from berth.api.node import Taint, count_untolerated_prefer_no_schedule, first_untolerated, tolerates
from berth.api.pod import Toleration

TAINT = Taint(key="k", value="v", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        pytest.param(Toleration(key="k", value="v", effect="NoSchedule"), True, id="equal"),
        pytest.param(Toleration(key="k", value="v"), True, id="no effect is every effect"),
        pytest.param(Toleration(key="k", operator="", value="v"), True, id="no operator is Equal"),
        pytest.param(Toleration(key="k", operator="Exists"), True, id="any value"),
        pytest.param(Toleration(operator="Exists"), True, id="no key is every key"),
        pytest.param(Toleration(key="k", value="w"), False, id="another value"),
        pytest.param(Toleration(key="l", operator="Exists"), False, id="another key"),
        pytest.param(Toleration(key="k", value="v", effect="NoExecute"), False, id="another effect"),
        pytest.param(Toleration(key="k", operator="Gt", value="v"), False, id="no such operator"),
    ],
)
def test_toleration(toleration, tolerated):
    assert tolerates(toleration, TAINT) is tolerated


def test_prefer_no_schedule_taints_exclude_no_pod():
    mild = Taint(key="k", effect="PreferNoSchedule")
    assert first_untolerated([mild, TAINT], []) is TAINT
    assert first_untolerated([mild], []) is None


def test_prefer_no_schedule_taints_are_counted_unless_tolerated():
    mild = [Taint(key=key, effect="PreferNoSchedule") for key in "abc"]
    tolerations = [Toleration(key="a", operator="Exists"), Toleration(key="b", operator="Exists", effect="NoSchedule")]
    assert count_untolerated_prefer_no_schedule([*mild, TAINT], tolerations) == 2  # b is tolerated for NoSchedule only
