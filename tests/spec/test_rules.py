"""Every operator of the table, run for real, gives what its rule says."""

import pytest
import torch
from tests.spec.samples import Recorder, calls, run

from p2ptrain.spec.call import CallError
from p2ptrain.spec.ops import OPS
from p2ptrain.spec.rules import RULES, check_node


@pytest.mark.parametrize("name", sorted(OPS))
def test_a_rule_gives_what_the_operator_gives(name):
    checked = 0
    for args in calls(name):
        try:
            results = run(name, args)
        except (RuntimeError, NotImplementedError) as error:
            assert OPS[name].rule.startswith(("binary", "compare")), error
            continue
        recorder = Recorder()
        check_node(recorder.node(name, args, results), recorder.metas)
        checked += 1
    assert checked > 0
