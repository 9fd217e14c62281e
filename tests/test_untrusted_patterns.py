"""Tests of names that regular expressions of a checkpoint or an adapter match, in a process of its own."""

import re
import sys

import pytest

from runtime import untrusted_patterns
from runtime.errors import ConfigError
from runtime.quantization.checkpoint.scheme import get_quantization
from runtime.untrusted_patterns import first_matches
from tests.quantization.packed_integers import gptq_config
from tests.quantization.quantized_files import FLOAT, compressed

FP8 = compressed("float-quantized", strategy="channel", **FLOAT)
# The process with a limit of one second, which then computes for more than that.
BUSY = """
from runtime import match_patterns
match_patterns.CPU_SECONDS = 1
match_patterns.main()
while True:
    pass
"""


def test_the_first_pattern_that_matches_from_the_first_character_on():
    names = ["a.up", "a.down", "b.up", "é\ud800"]
    found = first_matches([r".*\.up$", "a", "up", "(?i)É"], names, "ignore")
    assert found == {"a.up": (0, 4), "a.down": (1, 1), "b.up": (0, 4), "é\ud800": (3, 1)}
    assert first_matches(["a", "a.*"], names, "ignore", full=True) == {"a.up": (1, 4), "a.down": (1, 6)}
    assert first_matches([], names, "ignore") == first_matches(["a"], [], "ignore") == {}


@pytest.mark.parametrize("bad", ["(", "a{99999999999}", "(?P<a>x)(?P<a>y)", "(" * 3000])
@pytest.mark.parametrize(
    ("config", "field"),
    [
        (lambda bad: FP8 | {"ignore": [f"re:{bad}"]}, "ignore"),
        (lambda bad: gptq_config(4, 128, dynamic={f"-:{bad}": {}}), "dynamic"),
    ],
)
def test_a_pattern_that_is_no_regular_expression_is_named(config, field, bad):
    sentence = re.escape(bad[:100]) + ".*, which is no valid regular expression here: "
    with pytest.raises(ConfigError, match=rf"config\.json: quantization_config's {field}.* has '{sentence}"):
        get_quantization({"quantization_config": config(bad)}).stated(["lm_head"])


def test_patterns_that_take_too_long_do_not_hang_the_server(monkeypatch):
    monkeypatch.setattr(untrusted_patterns, "COMMAND", (sys.executable, "-c", BUSY))
    with pytest.raises(ConfigError, match=r"^ignore: the regular expressions could not be .* name the mod"):
        first_matches(["x"], ["lm_head"], "ignore")
