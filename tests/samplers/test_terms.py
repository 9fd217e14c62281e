"""What rules make of requests' values, worked out once for equal ones."""

import pytest

from runtime.request.description import values_of
from runtime.samplers import get_rule, rules
from runtime.samplers.terms import terms


@pytest.mark.parametrize("rule", [get_rule(key) for key in rules()], ids=rules())
def test_terms_are_what_the_rule_says(rule):
    values = values_of(rule.fields)
    agreed = terms(rule, values)
    assert agreed == (int(rule.asks(values)), rule.unstable(values), rule.merge(values), tuple(rule.row(values)))
    assert terms(rule, dict(values)) is agreed


def test_other_values_are_other_terms():
    rule = get_rule("threshold")
    values = values_of(rule.fields)
    plain, remasking = terms(rule, values), terms(rule, values | {"remask_threshold": 0.5})
    assert (plain.unstable, remasking.unstable) == (False, True)
    assert remasking.asks > plain.asks
    assert remasking.row != plain.row
