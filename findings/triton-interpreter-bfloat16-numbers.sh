#!/bin/sh
# Triton's interpreter cannot add a number to a bfloat16 tensor, or fill one, but it can make zeros and cast.
#
# With TRITON_INTERPRET=1 Triton 3.6.0 runs kernels in Python, for tests without a GPU. A number in an expression takes the
# dtype of the tensor beside it. The interpreter's builder has a method per dtype for such numbers, float16's among them,
# and none for bfloat16. Zeros and casts take another way. So x + 1.0 fails for bfloat16 alone, in a kernel that compiles.
#
# The packages take about 5 GB with torch's libraries for CUDA, which the script does not use.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q uv==0.13.9
"$dir/v/bin/uv" pip install -q --python "$dir/v/bin/python" torch==2.11.0 triton==3.6.0 numpy==2.4.6
cat > "$dir/t.py" <<'PY'
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(out_ptr, N: tl.constexpr, how: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(out_ptr + at)
    if how == "x + 1.0":
        value = x + 1.0
    elif how == "full":
        value = tl.full([N], 1.0, x.dtype)
    elif how == "zeros":
        value = tl.zeros([N], x.dtype)
    else:
        value = tl.full([N], 1.0, tl.float32).to(x.dtype)
    tl.store(out_ptr + at, value)


for how in ("x + 1.0", "full", "zeros", "cast"):
    for dtype in (torch.float16, torch.bfloat16):
        out = torch.zeros(2, dtype=dtype)
        try:
            kernel[(1,)](out, 2, how)
            seen = out.tolist()
        except Exception as error:
            while error.__cause__ is not None:
                error = error.__cause__
            seen = error
        print(how, dtype, seen)
PY
TRITON_INTERPRET=1 "$dir/v/bin/python" "$dir/t.py" > "$dir/out"
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
x + 1.0 torch.float16 [1.0, 1.0]
x + 1.0 torch.bfloat16 'InterpreterBuilder' object has no attribute 'get_bf16'
full torch.float16 [1.0, 1.0]
full torch.bfloat16 'InterpreterBuilder' object has no attribute 'get_bf16'
zeros torch.float16 [0.0, 0.0]
zeros torch.bfloat16 [0.0, 0.0]
cast torch.float16 [1.0, 1.0]
cast torch.bfloat16 [1.0, 1.0]
SEEN
