#!/bin/sh
# `content.strip('\n')` in a chat template also removes the indentation of the first line in JavaScript.
#
# Templates of reasoning models write `content.strip('\n')` or `content.split('</think>')[-1].lstrip('\n')`.
# @huggingface/jinja 0.5.11 has these methods, but ignores their argument without an error: it strips all white space.
# A message that begins with indented code loses its first indentation in the prompt. jinja2 3.1.6 and minijinja 3.1.0
# (with its methods of Python) keep it.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q jinja2==3.1.6 minijinja==3.1.0
(cd "$dir" && npm install --silent --no-fund --no-audit @huggingface/jinja@0.5.11 > npm.log)
cat > "$dir/run.py" <<'EOF'
import json
import jinja2, minijinja
template = r"{{ content.split('</think>')[-1].lstrip('\n') }}|{{ 'xaxx'.strip('x') }}"
content = "<think>short</think>\n\n    return x\n"
environment = minijinja.Environment()
environment.pycompat = True
print("jinja2    ", json.dumps(jinja2.Template(template).render(content=content)))
print("minijinja ", json.dumps(environment.render_str(template, content=content)))
EOF
cat > "$dir/run.mjs" <<'EOF'
import { Template } from "@huggingface/jinja";
const template = String.raw`{{ content.split('</think>')[-1].lstrip('\n') }}|{{ 'xaxx'.strip('x') }}`;
const content = "<think>short</think>\n\n    return x\n";
console.log("JavaScript", JSON.stringify(new Template(template).render({ content })));
EOF
{ "$dir/v/bin/python" "$dir/run.py"; node "$dir/run.mjs"; } > "$dir/out"
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
jinja2     "    return x\n|a"
minijinja  "    return x\n|a"
JavaScript "return x\n|xaxx"
SEEN
