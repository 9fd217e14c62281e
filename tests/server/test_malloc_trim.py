"""Tests of when memory is returned to the system: after it has grown, whatever the cause, once the process is idle."""

from runtime.server.http_protocol.malloc_trim import MIN_GROWTH, MIN_INTERVAL, STABLE_SECONDS, MallocTrimmer

MB = 2**20


class Process:
    """Simulated memory and clock of a process, and a trimmer that checks them once per second."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.resident = 100 * MB
        self.in_use = 0
        self.trims: list[float] = []
        self.cycles = 0  # bytes in use until they are garbage collected
        self.trimmer = MallocTrimmer()
        self.trimmer.resident, self.trimmer.clock = lambda: self.resident, lambda: self.now
        self.trimmer.trim, self.trimmer.collect = self.trim, self.collect
        self.look(5)

    def trim(self, pad: int) -> int:
        self.trims.append(self.now)
        self.resident = max(102 * MB, self.in_use)
        return 1

    def collect(self) -> int:
        self.in_use -= self.cycles
        self.cycles = 0
        return 1

    def look(self, seconds: int, busy: bool = False) -> None:
        for _ in range(seconds):
            self.now += 1
            self.trimmer.check(busy)


def test_memory_is_returned_after_a_peak() -> None:
    process = Process()
    process.resident += 4 * MIN_GROWTH
    process.look(30, busy=True)
    assert process.trims == []
    process.look(int(STABLE_SECONDS) + 1)
    assert len(process.trims) == 1
    process.look(100)  # memory that could not be returned is no growth
    assert len(process.trims) == 1


def test_growing_memory_and_little_memory_are_not_trimmed() -> None:
    process = Process()
    for _ in range(20):
        process.resident += 3 * MB
        process.look(1)
    assert process.trims == []
    process = Process()
    process.resident += MIN_GROWTH // 2
    process.look(100)
    assert process.trims == []


def test_trims_have_a_minimum_interval() -> None:
    process = Process()
    for _ in range(60):
        process.resident += 2 * MIN_GROWTH
        process.look(int(STABLE_SECONDS) + 1)
    intervals = [b - a for a, b in zip(process.trims, process.trims[1:], strict=False)]
    assert intervals
    assert min(intervals) >= MIN_INTERVAL


def test_memory_in_use_at_the_first_trim_is_returned_later() -> None:
    process = Process()
    process.resident = process.in_use = 200 * MB  # stays in use, as in a slow attack
    process.look(60)
    assert 1 < len(process.trims) < 5  # rare while trims have no effect
    process.in_use = 0  # freed but not yet returned: resident memory is unchanged
    process.look(60)
    assert process.resident == 102 * MB


def test_reference_cycles_are_collected_before_a_trim() -> None:
    process = Process()
    process.resident = process.in_use = 200 * MB
    process.cycles = process.in_use
    process.look(int(STABLE_SECONDS) + 1)
    assert len(process.trims) == 1
    assert process.resident == 102 * MB
