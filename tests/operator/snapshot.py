"""Renders the children of each example, which are stored in snapshots/.

`PYTHONPATH=operator:. .venv/bin/python -m tests.operator.snapshot` rewrites them. Check the diff before committing it:
a change of a pod template restarts engines at the next edit of their resources.
"""

from pathlib import Path

import yaml

from tests.operator.samples import make, observe
from unmask_operator.objects import KIND, Obj

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).with_name("snapshots")


def examples() -> dict[str, Obj]:
    """Returns every DiffusionLMService in examples/, in the namespace `default`.

    The key is the file's name. For further services of a file it is followed by the service's name.
    """
    found: dict[str, Obj] = {}
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        services = [doc for doc in yaml.safe_load_all(path.read_text()) if doc and doc["kind"] == KIND]
        for service in services:
            key = f"{path.stem}-{service['metadata']['name']}" if path.stem in found else path.stem
            metadata = {"namespace": "default", "uid": "00000000-0000-0000-0000-000000000000", "generation": 1}
            found[key] = {**service, "metadata": {**metadata, **service["metadata"]}}
    return found


def rendered(service: Obj) -> str:
    """Returns the children as YAML, without the revision, which repeats the Deployment's template."""
    plan = make(observe(service))
    assert plan.problems == (), plan.problems
    children = [child for child in plan.children if child["kind"] != "ControllerRevision"]
    return yaml.dump_all(children, Dumper=_NoAliases, sort_keys=False, width=120)


class _NoAliases(yaml.SafeDumper):
    """Writes YAML without anchors, so that every object is written in full."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    snapshots = {FOLDER / f"{name}.yaml": rendered(service) for name, service in examples().items()}
    for path in set(FOLDER.glob("*.yaml")) - snapshots.keys():
        path.unlink()
    for path, text in snapshots.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
