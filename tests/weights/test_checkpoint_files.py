"""Tests that only regular files inside a checkpoint are read, so it cannot disclose other files of the server."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.errors import ConfigError
from runtime.models.base import resolve_family
from runtime.tokenizer import Tokenizer
from runtime.weights import checkpoint_files
from runtime.weights.checkpoint import resolve_checkpoint, resolve_text_files
from runtime.weights.special_tokens import resolve_token_ids
from tests.server.checkpoint import write_checkpoint
from tests.wait import TIMEOUT

NAMES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_checkpoint(tmp_path_factory.mktemp("files") / "model")
    (directory / "generation_config.json").write_text("{}")
    (directory / "special_tokens_map.json").write_text("{}")
    return directory


@pytest.fixture
def model(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "model")
    return tmp_path / "model"


def read_all(model: Path) -> Tokenizer:
    """Reads all files of a checkpoint that frontend and backend read."""
    checkpoint = resolve_checkpoint(str(model))
    family = resolve_family(None, checkpoint.config)
    resolve_token_ids(checkpoint, family, family.facts(family.parse(checkpoint.config)))
    for file in set(checkpoint.tensor_files().values()):
        with checkpoint.tensors(file) as handle:
            assert list(handle.keys())
    return Tokenizer(resolve_text_files(str(model)))


def refusal(model: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_all(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def outside(model: Path, name: str) -> None:
    """Moves the file out of the checkpoint and links to it."""
    target = model.parent / f"moved-{name}"
    shutil.move(model / name, target)
    (model / name).symlink_to(target)


def shard_outside(model: Path) -> None:
    names = list(resolve_checkpoint(str(model)).tensor_files())
    outside(model, "model.safetensors")
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model-1.safetensors")}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def template_of(model: Path, directory: str, link: str) -> None:
    """Writes a template to a directory beside the checkpoint, and links to it."""
    (model.parent / directory).mkdir()
    (model.parent / directory / "chat_template.jinja").write_text("secret")
    (model / "sub").symlink_to("../secret")
    (model / "chat_template.jinja").symlink_to(link)


def blobs_outside(model: Path) -> None:
    blobs = hub_cache(model).parents[1] / "blobs"
    shutil.move(blobs, model.parent / "elsewhere")
    blobs.symlink_to(model.parent / "elsewhere")


REVISION = "../hub/models--org--name/snapshots/0123"
OUTSIDE: dict[str, Callable[[Path], object]] = {
    "chat_template.jinja": lambda model: (model / "chat_template.jinja").symlink_to("/proc/self/environ"),
    **{name: lambda model, name=name: outside(model, name) for name in (*NAMES, "model.safetensors")},
    "model-1.safetensors": shard_outside,
    "a directory link": lambda model: template_of(model, "secret", "sub/chat_template.jinja"),
    "a sibling with a similar name": lambda model: template_of(model, "model-2", "../model-2/chat_template.jinja"),
    "blobs": blobs_outside,
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_no_file_outside_is_read(model: Path, case: str) -> None:
    OUTSIDE[case](model)
    sentence = refusal(model / REVISION if case == "blobs" else model)
    assert "leads out of the checkpoint" in sentence
    assert os.environ["PATH"] not in sentence
    assert " " in case or case == "blobs" or str(model / case) in sentence


@pytest.mark.parametrize("name", ["../../x.safetensors", "/etc/passwd", "a/../../x.safetensors", ".."])
def test_an_index_names_no_file_outside(model: Path, name: str) -> None:
    shutil.move(model / "model.safetensors", model.parent / "x.safetensors")
    index = {"weight_map": {"model.norm.weight": name}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "is not a name inside the checkpoint" in refusal(model)


def test_links_inside_a_volume_are_followed(model: Path) -> None:
    (model / "..2026").mkdir()
    for name in (*NAMES, "model.safetensors"):
        shutil.move(model / name, model / "..2026" / name)
        (model / name).symlink_to(f"..data/{name}")
    (model / "..2026" / "chat_template.jinja").write_text("from the volume")
    (model / "chat_template.jinja").symlink_to("..data/chat_template.jinja")
    (model / "..data").symlink_to("..2026")
    link = model.parent / "link"
    link.symlink_to("model")
    chat = [{"role": "user", "content": "x"}]
    for directory in (model, link):
        tokenizer = read_all(directory)
        assert tokenizer.decode(tokenizer.encode_chat(chat)) == "from the volume"


def hub_cache(model: Path) -> Path:
    """Moves the checkpoint to a cache of huggingface_hub, and returns the directory of its revision."""
    repository = model.parent / "hub" / "models--org--name"
    revision = repository / "snapshots" / "0123"
    revision.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, file in enumerate(sorted(model.iterdir())):
        shutil.move(file, repository / "blobs" / str(number))
        (revision / file.name).symlink_to(f"../../blobs/{number}")
    return revision


def test_the_hubs_cache_links_to_contents_of_the_same_repository(model: Path) -> None:
    revision = hub_cache(model)
    read_all(revision)
    other = revision.parents[2] / "models--org--other" / "blobs"
    other.mkdir(parents=True)
    (other / "0").write_text("secret")
    (revision / "chat_template.jinja").symlink_to("../../../models--org--other/blobs/0")
    assert "leads out of the checkpoint" in refusal(revision)
    (revision / "chat_template.jinja").unlink()
    (revision.parents[1] / "token").write_text("secret")  # in the repository's folder, but no blob
    (revision / "chat_template.jinja").symlink_to("../../token")
    assert "leads out of the checkpoint" in refusal(revision)


def test_a_broken_link_is_named(model: Path) -> None:
    (model / "chat_template.jinja").symlink_to("gone")
    assert "is a link to nothing" in refusal(model)


@pytest.mark.parametrize("name", [*NAMES, "chat_template.jinja", "model.safetensors"])
def test_a_pipe_is_refused_without_waiting(model: Path, name: str) -> None:
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    messages: list[str] = []
    thread = threading.Thread(target=lambda: messages.append(refusal(model)), daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert messages, "reading blocks on the pipe"
    assert f"{model / name} is not a regular file" in messages[0]


def test_a_directory_instead_of_a_file_is_refused(model: Path) -> None:
    (model / "generation_config.json").unlink()
    (model / "generation_config.json").mkdir()
    assert "is not a regular file" in refusal(model)


def test_a_link_that_replaces_a_resolved_file_is_not_followed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model.parent / "secret").write_text("secret")
    resolve = os.path.realpath

    def swapping(path: str | Path, **options: bool) -> str:
        real = resolve(path, **options)
        if real.endswith("/chat_template.jinja"):
            os.unlink(real)
            os.symlink(model.parent / "secret", real)
        return real

    (model / "chat_template.jinja").write_text("mine")
    monkeypatch.setattr(os.path, "realpath", swapping)
    with pytest.raises(ConfigError, match="is not a regular file"):
        checkpoint_files.read_text(model, "chat_template.jinja", 100)


def test_a_link_that_changes_meanwhile_is_resolved_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a volume is updated, the directory that a link led to is removed."""
    (model / "new").mkdir()
    (model / "new" / "a").write_text("new")
    (model / "a").symlink_to("new/a")
    resolve, first = os.path.realpath, [str(model / "old" / "a")]

    def delayed(path: str | Path, **options: bool) -> str:
        real = resolve(path, **options)
        return first.pop() if first and real.endswith("/a") else real

    monkeypatch.setattr(os.path, "realpath", delayed)
    assert checkpoint_files.read_text(model, "a", 100) == "new"


def test_files_are_read_to_a_limit(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "chat_template.jinja").write_text("x" * (checkpoint_files.TEMPLATE_BYTES + 1))
    assert f"larger than the limit of {checkpoint_files.TEMPLATE_BYTES} bytes" in refusal(model)
    (model / "chat_template.jinja").unlink()
    settings = json.loads((model / "tokenizer_config.json").read_text())
    longer = {**settings, "chat_template": "x" * (checkpoint_files.TEMPLATE_BYTES + 1)}
    (model / "tokenizer_config.json").write_text(json.dumps(longer))
    assert "chat_template is longer" in refusal(model)
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    with (model / "generation_config.json").open("r+b") as file:
        file.truncate(checkpoint_files.JSON_BYTES + 1)  # sparse
    assert "make it smaller" in refusal(model)


def test_deeply_nested_json_is_one_sentence(model: Path) -> None:
    (model / "tokenizer_config.json").write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    assert "nested too deeply" in refusal(model)


KERNELS = (
    "/proc/self/environ", "/proc/thread-self/environ", "/proc/self/task/../environ", "/sys/kernel/uevent_seqnum",
    "/dev/null", "/dev/fd/0",
)  # fmt: skip


@pytest.mark.parametrize("path", KERNELS)
def test_the_owner_cannot_choose_a_file_of_the_kernel(model: Path, path: str) -> None:
    if not os.path.exists(path):
        pytest.skip("this system has no such file")
    link = model.parent / "template"
    link.symlink_to(path)
    for named in (path, link):
        with pytest.raises(ConfigError, match=r"--chat-template: .* is in a kernel file system") as caught:
            Tokenizer(model, named)
        assert os.environ["PATH"] not in str(caught.value)


def test_the_owners_template_may_be_at_any_other_path(model: Path) -> None:
    (model.parent / "real.jinja").write_text("chosen")
    link = model.parent / "link.jinja"
    link.symlink_to("real.jinja")
    tokenizer = Tokenizer(model, link)
    assert tokenizer.decode(tokenizer.encode_chat([{"role": "user", "content": "x"}])) == "chosen"
    (model.parent / "large.jinja").write_text("x" * (checkpoint_files.TEMPLATE_BYTES + 1))
    with pytest.raises(ConfigError, match=r"--chat-template: .*large\.jinja is larger than"):
        Tokenizer(model, model.parent / "large.jinja")


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 5\n"


CONVERTED = ("tokenizer.model", "vocab.json", "merges.txt", "qwen.tiktoken")


@pytest.mark.parametrize("name", [*NAMES, "model.safetensors", *CONVERTED])
def test_a_pointer_of_git_lfs_is_named(model: Path, name: str) -> None:
    if name in CONVERTED:
        (model / "tokenizer.json").unlink()
    (model / name).write_text(POINTER)
    assert f"{name} is a Git LFS pointer in place of the file; run `git lfs pull`" in refusal(model)
