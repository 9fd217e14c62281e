"""Reading what processes write does not move where they write."""

import os
import tempfile

from tests.written import written


def test_reading_moves_nothing() -> None:
    with tempfile.TemporaryFile() as file:
        descriptor = file.fileno()
        os.write(descriptor, b"first\nsecond\n")
        os.lseek(descriptor, 6, os.SEEK_SET)  # a writer's position, which who reads may not touch
        assert written(file) == "first\nsecond\n"
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 6
