#!/bin/sh
# snapshot_download returns a folder without a single file of the requested pattern if the hub cannot be reached.
#
# huggingface_hub 1.33.0 checks offline only that a folder of the revision exists. If an earlier call fetched config.json
# alone, a later one for the weights returns that folder, without an error or a warning. The reader then reports a
# checkpoint without weights, and not that the download is missing. hf_hub_download of one file raises an error.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q huggingface_hub==1.33.0
commit=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
mkdir -p "$dir/cache/models--me--model/refs" "$dir/cache/models--me--model/snapshots/$commit"
printf %s $commit > "$dir/cache/models--me--model/refs/main"
echo '{}' > "$dir/cache/models--me--model/snapshots/$commit/config.json"
HF_HUB_OFFLINE=1 HF_HUB_CACHE="$dir/cache" "$dir/v/bin/python" > "$dir/out" <<'EOF'
import os
from huggingface_hub import hf_hub_download, snapshot_download
print("snapshot_download:", os.listdir(snapshot_download("me/model", allow_patterns=["*.safetensors"])))
try:
    hf_hub_download("me/model", "model.safetensors")
except Exception as error:
    print("hf_hub_download:", type(error).__name__)
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
snapshot_download: ['config.json']
hf_hub_download: LocalEntryNotFoundError
SEEN
