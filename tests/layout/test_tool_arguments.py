"""Tests that tools with required arguments print their usage if these are wrong."""

import runpy

import pytest

TOOLS = {  # further invalid arguments per tool
    "tools.commit_subject": ["/nowhere/message"],
    "tools.cpu_lock": ["/nowhere/lock.txt"],
    "tools.docs.dashboard_picture": ["http://127.0.0.1:9090", "ten"],
    "tools.docs.diagrams": [],
    "tools.docs.site": [],
    "tools.sbom": ["uv", "no-image", "0.1.0", "sbom.json"],
    "tools.strategies": ["no-module"],
}


@pytest.mark.parametrize("module", TOOLS)
@pytest.mark.filterwarnings("ignore:'tools.*' found in sys.modules:RuntimeWarning")
def test_wrong_arguments_end_with_the_usage(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([], TOOLS[module], ["--no-such-flag"]):
        monkeypatch.setattr("sys.argv", [module, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__")
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith(f"usage: python -m {module} ")
