"""Tests of the plots of stories: the token offsets of their roles, and their counts."""

import contextlib
import json
import random
from types import SimpleNamespace

import runtime
from training.demo import plots
from training.demo.tasks import all_tasks, held_out_samples
from training.demo.tasks.story import plot_of, write
from training.demo.tokenizer import ChatEncoder, make_tokenizer


def test_plots_are_counted_among_right_stories_only(monkeypatch, tmp_path, capsys) -> None:
    def generate(prompts, params):
        """Writes stories, every second of which is wrong."""
        roles = next(roles for prompt, roles in plots.REQUESTS.items() if prompt == prompts[0][0]["content"])
        texts = [write(random.Random(p.seed), **roles) for p in params]
        return [SimpleNamespace(text=t if i % 2 else t.replace(" near ", " under ")) for i, t in enumerate(texts)]

    monkeypatch.setattr(runtime, "LLM", lambda **flags: contextlib.nullcontext(SimpleNamespace(generate=generate)))
    out = tmp_path / "plots.json"
    assert plots.main(["--seeds", "120", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["requests"]
    assert [row["prompt"] for row in rows] == list(plots.REQUESTS)
    assert all(row["right"] == sum(row["plots"].values()) == 60 and len(row["plots"]) == 11 for row in rows)
    assert "60 of 120 right" in capsys.readouterr().out


def test_the_offset_of_a_role_depends_on_no_plot_and_on_no_choice() -> None:
    """Otherwise decoding is uncertain where to copy a requested name, and sampling prefers some plots."""
    encoder = ChatEncoder(make_tokenizer())

    def openings(**asked: str) -> list[list[int]]:
        drawn = (write(random.Random(seed), **asked) for seed in range(200))
        stories = {plot_of(text): text for text in drawn}
        assert len(stories) == 11
        return [encoder.text("\n".join(text.split("\n")[:2])) for text in stories.values()]

    for name in ("story", "story_any", "story_free"):
        for sample in held_out_samples(all_tasks()[name], 20):
            assert len({len(ids) for ids in openings(**sample.facts)}) == 1
    equal_roles = openings(he="Bruno", an="owl", pl="moon", th="spoon", time="night")
    assert [len(set(ids)) for ids in zip(*equal_roles, strict=True)].count(11) == 1
    assert sum(len(set(ids)) > 1 for ids in zip(*equal_roles, strict=True)) == 1
