"""Where a group adds up: places that are used in turns, and what lies there for how long."""

import torch

from runtime.distributed.all_reduce import MIN_BYTES, NUM_BUFFERS, AllReduceBuffer
from runtime.distributed.process_group import TensorParallelGroup

CPU = torch.device("cpu")


def test_what_is_put_lasts_until_the_places_have_all_been_used():
    room = AllReduceBuffer(CPU)
    kept = [room.put(torch.full((2, 3), float(n))) for n in range(NUM_BUFFERS)]
    assert [int(x[0, 0]) for x in kept] == list(range(NUM_BUFFERS))
    room.put(torch.full((2, 3), 7.0))
    assert (kept[0] == 7).all()
    assert (kept[1] == 1).all()


def test_what_lies_there_already_is_not_copied():
    room = AllReduceBuffer(CPU)
    place = room.next((4, 2), torch.float64)
    assert room.next((4, 2), torch.float64).data_ptr() == place.data_ptr()  # asking takes nothing
    place.fill_(3)
    assert room.put(place) is place
    assert room.next((4, 2), torch.float64).data_ptr() != place.data_ptr()


def test_places_grow_and_stay_for_whoever_recorded_them():
    room = AllReduceBuffer(CPU)
    small = room.put(torch.ones(2, 2))
    large = room.put(torch.ones(MIN_BYTES, 2))
    assert large.shape == (MIN_BYTES, 2)
    assert (small == 1).all()
    assert room.next((0, 8), torch.float32) is None


def test_a_group_without_a_place_gives_what_it_was_given():
    x = torch.arange(6.0).view(2, 3)
    assert TensorParallelGroup().output_buffer(x.shape, x.dtype) is None
    assert TensorParallelGroup().all_reduce_out(x) is x
