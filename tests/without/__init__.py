"""Whether what is added by name can be taken away again: the tests of a tree without some of its entries."""
