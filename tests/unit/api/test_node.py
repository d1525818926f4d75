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
        pytest.param(Toleration(key="k", operator="Gt", value="1"), False, id="compared, but the taint is no number"),
        pytest.param(Toleration(key="k", operator="In", value="v"), False, id="no such operator"),
    ],
)
def test_toleration(toleration, tolerated):
    assert tolerates(toleration, TAINT) is tolerated


@pytest.mark.parametrize(
    ("operator", "bound", "value", "tolerated"),
    [
        pytest.param("Gt", "10", "11", True, id="more"),
        pytest.param("Gt", "10", "10", False, id="not more"),
        pytest.param("Gt", "9", "10", True, id="numbers, not texts"),
        pytest.param("Lt", "10", "9", True, id="less"),
        pytest.param("Lt", "10", "10", False, id="not less"),
        pytest.param("Lt", "0", "-5", True, id="negative"),
        pytest.param("Gt", "9223372036854775806", "9223372036854775807", True, id="the largest of 64 bits"),
        pytest.param("Lt", "9223372036854775807", "-9223372036854775808", True, id="the smallest of 64 bits"),
        pytest.param("Gt", "1", "9223372036854775808", False, id="beyond 64 bits"),
        pytest.param("Gt", "1", "007", False, id="leading zeros"),
        pytest.param("Gt", "1", "+7", False, id="a plus sign"),
        pytest.param("Lt", "1", "-0", False, id="minus zero"),
        pytest.param("Lt", "1", "-", False, id="a minus sign alone"),
        pytest.param("Gt", "1", "7.5", False, id="a fraction"),
        pytest.param("Gt", "1", "", False, id="no value"),
        pytest.param("Gt", "1", "\u0667", False, id="a digit of another script"),
        pytest.param("Lt", "01", "0", False, id="a toleration that the API server rejects"),
    ],
)
def test_gt_and_lt_compare_the_value_of_the_taint_as_a_number(operator, bound, value, tolerated):
    taint = Taint(key="k", value=value, effect="NoSchedule")
    assert tolerates(Toleration(key="k", operator=operator, value=bound), taint) is tolerated


def test_prefer_no_schedule_taints_exclude_no_pod():
    mild = Taint(key="k", effect="PreferNoSchedule")
    assert first_untolerated([mild, TAINT], []) is TAINT
    assert first_untolerated([mild], []) is None


def test_prefer_no_schedule_taints_are_counted_unless_tolerated():
    mild = [Taint(key=key, effect="PreferNoSchedule") for key in "abc"]
    tolerations = [Toleration(key="a", operator="Exists"), Toleration(key="b", operator="Exists", effect="NoSchedule")]
    assert count_untolerated_prefer_no_schedule([*mild, TAINT], tolerations) == 2  # b is tolerated for NoSchedule only
