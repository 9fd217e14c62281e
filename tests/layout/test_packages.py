"""Tests that both packages of the distribution are importable, and that neither hides a standard library module."""

import operator
import sysconfig
from pathlib import Path

import runtime
import unmask_operator

ROOT = Path(__file__).parents[2]


def test_both_packages_come_from_this_checkout():
    assert Path(runtime.__file__).is_relative_to(ROOT / "runtime")
    assert Path(unmask_operator.__file__).is_relative_to(ROOT / "operator")


def test_operator_is_the_module_of_the_standard_library():
    assert Path(operator.__file__).parent == Path(sysconfig.get_path("stdlib"))
    assert not (ROOT / "operator" / "__init__.py").exists()
