"""A request as its sender knows it: what may be asked for, and how an answer is put together. No torch."""
