"""``unmask pull``: downloads the files of a model that the server reads, and checks them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from runtime.cli import model as with_scheme
from runtime.errors import ConfigError

if TYPE_CHECKING:
    from runtime.config import EngineConfig
    from runtime.weights.checkpoint import Checkpoint
    from runtime.weights.hub import Progress, Repository

REPORT_SECONDS = 10.0  # between lines of progress in a log
EPILOG = """\
Weights are downloaded only if the server supports the model. Flags of `unmask serve` that select how it is read are
accepted, such as --model-name, --decoding-strategy and --plugin.

Complete files of an earlier call are not downloaded again. The directory is printed on stdout, for example for
unmask serve "$(unmask pull JetLM/SDAR-8B-Chat)".

The exit code is 0 if all files are there and equal those of the hub, 1 if another call may succeed (the hub cannot be
reached), and 2 if none can: the model or its revision does not exist or is not supported, a token is needed, or the
disk is too small."""


def main(argv: list[str]) -> int:
    """Downloads a model. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="unmask pull", usage="unmask pull MODEL [--to DIR] [flags of the server]", epilog=EPILOG,
        description="Downloads config.json, tokenizer and weights of a model, and nothing else.",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("model", help="org/name or hf://org/name, each optionally with @REVISION")
    parser.add_argument("--to", type=Path, help="directory for plain files; default: the cache of huggingface_hub")
    args, flags = parser.parse_known_args(argv)
    from runtime.config import parse
    from runtime.weights.hub import TemporaryError

    try:
        print(pull(parse(["--model", with_scheme(args.model), *flags], os.environ).engine, args.to))
    except TemporaryError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def pull(engine: EngineConfig, to: Path | None) -> Path:
    """Downloads and checks the files of ``hf://org/name[@revision]``. Returns their directory.

    Args:
        engine: The configuration of a server that is to read them.
        to: Directory for plain files; None: the cache of huggingface_hub.

    Raises:
        ConfigError: The model is not supported or cannot be downloaded; TemporaryError if another call may succeed.
    """
    from huggingface_hub.utils.tqdm import disable_progress_bars

    from runtime.weights import hub
    from runtime.weights.checkpoint import fetch_text, open_checkpoint
    from runtime.weights.repository import write_repository

    model = engine.model
    if model is None or not model.startswith("hf://"):
        raise ConfigError(f"{model!r} is not org/name or hf://org/name; only models of the hub are downloaded")
    disable_progress_bars()
    if to is None:
        checkpoint = open_checkpoint(model)
        repository = _listed(model, checkpoint.path.name)
    else:
        _check_writable(to)
        repository = hub.Repository.resolve(model)
        checkpoint = fetch_text(repository, to)
    names = files_read(repository, checkpoint)
    _check_supported(engine, checkpoint)
    line = ProgressLine(sys.stderr)
    directory = fetch_checked(repository, names, line.show, to)
    line.end()
    if to is not None:
        write_repository(directory, hub.parse(model)[0])
    return directory


def files_read(repository: Repository, checkpoint: Checkpoint) -> list[str]:
    """Returns the files of a repository that the server reads. Raises ConfigError if it lacks weights."""
    from runtime.weights.checkpoint import listed_weights

    return [*repository.text_files(), *listed_weights(repository, checkpoint)]


def fetch_checked(repository: Repository, names: list[str], progress: Progress, to: Path | None) -> Path:
    """Downloads files of a repository, and compares them with those of the hub.

    Args:
        repository: The repository.
        names: The files.
        progress: See `Repository.fetch`.
        to: As for `pull`.

    Returns:
        The directory.

    Raises:
        ConfigError: As `pull`.
    """
    from runtime.weights.checkpoint import summary
    from runtime.weights.hub import TemporaryError

    size = sum(repository.files[name].size for name in names)
    print(f"{repository.model}, commit {repository.commit}: {len(names)} files, {size / 1e9:.2f} GB", file=sys.stderr)
    directory = repository.fetch(names, progress, to)
    if wrong := repository.differing(directory, names, progress):
        for name in wrong:
            for path in {(directory / name).resolve(), directory / name}:  # in the cache, a link and its target
                path.unlink(missing_ok=True)
        raise TemporaryError(
            f"{summary(wrong)} differed from the hub and {'was' if len(wrong) == 1 else 'were'} removed; call again"
        )
    return directory


def _listed(model: str, commit: str) -> Repository:
    """Lists the files of a repository on the hub. Raises TemporaryError."""
    from runtime.weights import hub

    try:
        repository = hub.Repository.of(model, commit)
    except hub.HubUnavailable as error:
        raise hub.TemporaryError(f"{model!r} could not be compared with the hub: {error}") from error
    if repository.unavailable:
        raise hub.TemporaryError(f"{model!r} could not be compared with the hub: {repository.unavailable}")
    return repository


def _check_supported(engine: EngineConfig, checkpoint: Checkpoint) -> None:
    """Raises ConfigError if the server refuses the checkpoint, whatever the device, before it reads weights."""
    # These import torch, which takes seconds: after the errors of the hub.
    from runtime.engine.model_plan import plan_model
    from runtime.plugins import load_plugins
    from runtime.quantization.checkpoint.scheme import quantization_of
    from runtime.weights.loader import check_index
    from runtime.weights.weight_formats import stored_formats

    load_plugins(engine.plugin)
    plan = plan_model(engine, checkpoint)
    quantization_of(checkpoint.config, engine.quantization)
    stored_formats(checkpoint, plan.family, plan.arch)
    check_index(checkpoint, plan.family.weights(plan.arch))


def _check_writable(to: Path) -> None:
    """Creates the directory. Raises ConfigError if that is not possible."""
    try:
        to.mkdir(parents=True, exist_ok=True)
        probe = to / ".unmask-pull"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"--to {to}: cannot be written: {error.strerror}; name a directory of your own") from None


class ProgressLine:
    """Progress of a download: one line that changes in a terminal, else a line every `REPORT_SECONDS`."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.began = self.reported = time.monotonic()
        self.first: int | None = None  # bytes that were there before
        self.written = 0  # characters of the line in the terminal

    def show(self, phase: str, done: int, total: int) -> None:
        """Shows the progress. Arguments: see ``runtime.weights.hub.Progress``."""
        now = time.monotonic()
        if self.first is None:
            self.first = done
        if not self.stream.isatty() and now - self.reported < REPORT_SECONDS:
            return
        self.reported = now
        rate = (done - self.first) / max(now - self.began, 1e-9)
        left = f", {(total - done) / rate:.0f} s left" if rate > 0 else ""
        text = f"{done / 1e9:.2f} of {total / 1e9:.2f} GB, {100 * done // max(total, 1)} %, {rate / 1e6:.1f} MB/s{left}"
        if self.stream.isatty():
            print(f"\r{text.ljust(self.written)}", end="", file=self.stream, flush=True)
            self.written = len(text)
        else:
            print(text, file=self.stream, flush=True)

    def end(self) -> None:
        """Ends the line in a terminal."""
        if self.written:
            print(file=self.stream)
