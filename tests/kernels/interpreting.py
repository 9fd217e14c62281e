"""Patches Triton's interpreter for newer libraries. Import this module before kernels run in the interpreter."""

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_with_index(tensor, scope):
    """Adds `__index__` to tensors, because newer numpy refuses the interpreter's conversion of loop bounds to int."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_with_index
