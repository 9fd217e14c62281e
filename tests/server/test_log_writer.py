"""Tests of the log of a server whose reader pauses."""

import logging
import os

import pytest

from runtime.server import log_writer
from runtime.server.log_writer import MAX_LINES, LogWriter


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def logger(pipe):
    """Returns a logger that writes to the pipe."""
    made = logging.Logger("test")
    made.addHandler(LogWriter(pipe[1]))
    return made


def test_lines_are_written_in_order_with_any_characters(pipe, logger):
    for i in range(100):
        logger.warning("line %d \u00e9 \ud800", i)
    logger.handlers[0].flush()
    lines = os.read(pipe[0], 1 << 16).decode().splitlines()
    assert lines == [f"line {i} \u00e9 \\ud800" for i in range(100)]


def test_a_log_that_is_not_read_delays_nobody_and_lines_are_dropped_and_counted(pipe, logger, monkeypatch):
    monkeypatch.setattr(log_writer, "FLUSH_SECONDS", 0.01)
    number = 0
    while not logger.handlers[0]._dropped:  # the pipe and the queue are full
        logger.warning("line %d %s", number, "x" * 100)
        number += 1
    assert number > MAX_LINES
    logger.handlers[0].flush()  # the end of the process does not wait for the reader either
    read = b""
    while b"because the log was not read" not in read:
        read += os.read(pipe[0], 1 << 16)
    lines = read.decode().splitlines()
    written = [line for line in lines if line.startswith("line")]
    assert [line.split()[1] for line in written] == [str(i) for i in range(len(written))]
    assert f"dropped {number - len(written)} lines" in lines[-1]
    monkeypatch.setattr(log_writer, "FLUSH_SECONDS", 60.0)
    logger.warning("again")
    logger.handlers[0].flush()
    assert os.read(pipe[0], 1 << 16) == b"again\n"


def test_a_log_that_cannot_be_written_is_given_up(logger, pipe):
    handler = LogWriter(pipe[0])  # not writable
    handler.emit(logging.makeLogRecord({"msg": "lost"}))
    handler.flush()
    assert not handler._lines
