#!/bin/sh
# The filter `safe` in a chat template escapes the user's text in transformers, and changes nothing elsewhere.
#
# transformers 5.17.0 renders without autoescaping, so `safe` looks useless. But it returns Markup, and Markup escapes
# each ordinary text that is added to it. A template that writes `'<tool>' | safe + message.content` therefore gives the
# model `&lt;`. `~` in place of `+` joins the same two values unchanged. minijinja 3.1.0 and @huggingface/jinja 0.5.11
# escape in neither case, so the same checkpoint gets other prompts.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q transformers==5.17.0 jinja2==3.1.6 minijinja==3.1.0
(cd "$dir" && npm install --silent --no-fund --no-audit @huggingface/jinja@0.5.11 > npm.log)
cat > "$dir/templates.json" <<'EOF'
["{{ '<b>' | safe + messages[0].content }}", "{{ '<b>' | safe ~ messages[0].content }}"]
EOF
cat > "$dir/run.py" <<'EOF'
import json, sys
import minijinja
from transformers.utils.chat_template_utils import render_jinja_template
for template in json.load(open(sys.argv[1])):
    messages = [{"role": "user", "content": "if a < b & c"}]
    print("transformers", render_jinja_template([messages], chat_template=template)[0][0])
    print("minijinja   ", minijinja.Environment().render_str(template, messages=messages))
EOF
cat > "$dir/run.mjs" <<'EOF'
import { readFileSync } from "node:fs";
import { Template } from "@huggingface/jinja";
for (const template of JSON.parse(readFileSync(process.argv[2])))
  console.log("JavaScript  ", new Template(template).render({ messages: [{ role: "user", content: "if a < b & c" }] }));
EOF
TRANSFORMERS_VERBOSITY=error "$dir/v/bin/python" "$dir/run.py" "$dir/templates.json" > "$dir/out"
node "$dir/run.mjs" "$dir/templates.json" >> "$dir/out"
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
transformers <b>if a &lt; b &amp; c
minijinja    <b>if a < b & c
transformers <b>if a < b & c
minijinja    <b>if a < b & c
JavaScript   <b>if a < b & c
JavaScript   <b>if a < b & c
SEEN
