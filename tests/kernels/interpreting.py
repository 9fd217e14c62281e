"""Import this before kernels run in Triton's interpreter: what it needs of newer libraries."""

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_with_index(tensor, scope):
    """The interpreter turns loop bounds into ints by a conversion that newer numpy refuses for arrays."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_with_index
