#!/bin/sh
# AutoAWQ packs the code 16 into four bits, so that a nearly dead group changes a weight of another output.
#
# AutoAWQ 0.2.9 stores scales in half precision, and WQLinear_GEMM.from_linear divides by the stored scale. The scale of a
# group that spans 1e-5 is a subnormal number: 6.83e-7 becomes 6.56e-7, and the largest weight gets the code 16. The method
# does not clamp or mask it. The weight becomes 0, and bit 4 falls into the code of an output that shares the word: that
# healthy weight is off by one step, here half of its value. Weights and scales that were half precision before, as
# AutoAWQ's own quantize() makes them, are not affected. A reader cannot tell: all codes and scales are valid.
#
# The packages take about 5 GB with torch's libraries for CUDA, which the script does not use.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q uv==0.13.9
"$dir/v/bin/uv" pip install -q --python "$dir/v/bin/python" autoawq==0.2.9 torch==2.11.0 transformers==4.51.3 \
    accelerate==1.15.0 datasets==5.0.1 numpy==2.4.6
"$dir/v/bin/python" > "$dir/out" <<'EOF'
from types import SimpleNamespace
import torch
from awq.modules.linear import WQLinear_GEMM
from awq.quantize.quantizer import AwqQuantizer
from awq.utils.packing_utils import dequantize_gemm
torch.manual_seed(0)
weight = torch.randn(32, 128) * 0.02
weight[2, 64:] = torch.rand(64) * 0.98e-5
weight[2, 64], weight[2, 65] = 1.0245e-5, 0
for dtype in (torch.float32, torch.float16):
    settings = SimpleNamespace(group_size=64, zero_point=True, w_bit=4)
    quantized, scales, zeros = AwqQuantizer.pseudo_quantize_tensor(settings, weight.to(dtype))
    linear = torch.nn.Linear(128, 32, bias=False)
    linear.weight.data = quantized
    packed = WQLinear_GEMM.from_linear(linear, 4, 64, scales=scales.t().contiguous(), zeros=zeros.t().contiguous())
    read = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales, 4, 64).t()
    wrong = ((read - quantized).abs() > 0.6 * scales.repeat_interleave(64, 1)).nonzero().tolist()
    print(f"{dtype}: {len(wrong)} of {weight.numel()} weights are off by a step")
    for output, column in wrong:
        print(f"output {output} input {column}: quantized {quantized[output, column]:.3g}, "
              f"packed {read[output, column]:.3g}, scale {scales[output, column // 64]:.3g}, "
              f"stored scale {packed.scales[column // 64, output]:.3g}")
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
torch.float32: 2 of 4096 weights are off by a step
output 2 input 64: quantized 1.02e-05, packed 0, scale 6.83e-07, stored scale 6.56e-07
output 4 input 64: quantized -0.0141, packed -0.00703, scale 0.00704, stored scale 0.00703
torch.float16: 0 of 4096 weights are off by a step
SEEN
