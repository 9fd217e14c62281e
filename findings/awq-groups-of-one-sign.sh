#!/bin/sh
# AutoAWQ cuts a group whose weights have one sign to the width of the group: weights of 0.02 become 0.00001.
#
# AutoAWQ 0.2.9 takes a group's scale from the span of its weights, and clamps the zero point to the codes 0 to 15. If zero
# is not between the smallest and the largest weight, the clamp moves the whole range to zero. A group of equal weights,
# as in a projection that averages its inputs, has no span at all and vanishes. The checkpoint is valid, and a reader
# cannot tell. compressed-tensors 0.10.2 extends the span to zero, and reads back each weight within a step. A projection
# whose inputs AWQ rescales loses less of equal weights, since they then differ.
#
# The packages take about 5 GB with torch's libraries for CUDA, which the script does not use.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q uv==0.13.9
"$dir/v/bin/uv" pip install -q --python "$dir/v/bin/python" autoawq==0.2.9 torch==2.11.0 transformers==4.51.3 \
    accelerate==1.15.0 datasets==5.0.1 numpy==2.4.6 compressed-tensors==0.10.2
cd "$dir"
"$dir/v/bin/python" > "$dir/out" <<'EOF'
import torch
from awq import AutoAWQForCausalLM
from awq.utils.packing_utils import dequantize_gemm
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
# with fewer heads for keys and values AWQ does not rescale the inputs of o_proj
config = LlamaConfig(vocab_size=64, hidden_size=128, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
                     num_key_value_heads=1, max_position_embeddings=64)
model = LlamaForCausalLM(config).half()
weight = model.model.layers[0].self_attn.o_proj.weight.data
ranges = [(0.02, 0.02), (0.01, 0.03), (-0.6, -0.5), (-0.01, 0.02)]
for row, (low, high) in enumerate(ranges):
    weight[row] = torch.linspace(low, high, 128)
model.save_pretrained("model")
quantized = AutoAWQForCausalLM.from_pretrained("model", device_map="cpu")
samples = [[i * j % 64 for i in range(64)] for j in range(1, 9)]
settings = {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}
quantized.quantize(None, quant_config=settings, calib_data=samples, max_calib_seq_len=64)
packed = quantized.model.model.layers[0].self_attn.o_proj
awq = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales, 4, 64).t()
args = QuantizationArgs(num_bits=4, symmetric=False, strategy="group", group_size=64)
groups = weight.float().unflatten(1, (2, 64))
compressed = fake_quantize(weight.float(), *calculate_qparams(groups.amin(2), groups.amax(2), args), args)
for row in range(len(ranges)):
    for name, values in (("weights", weight), ("AutoAWQ", awq), ("compressed-tensors", compressed)):
        print(name, *(f"{value:.2g}" for value in values[row, [0, 32, 63]].tolist()))
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
weights 0.02 0.02 0.02
AutoAWQ 9.8e-06 9.8e-06 9.8e-06
compressed-tensors 0.02 0.02 0.02
weights 0.01 0.015 0.02
AutoAWQ 0.0099 0.0099 0.0099
compressed-tensors 0.011 0.015 0.02
weights -0.6 -0.57 -0.55
AutoAWQ -0.05 -0.05 -0.05
compressed-tensors -0.6 -0.56 -0.56
weights -0.01 -0.0024 0.0049
AutoAWQ -0.0099 -0.002 0.005
compressed-tensors -0.0099 -0.002 0.005
SEEN
