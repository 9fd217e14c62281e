#!/bin/sh
# A pattern with alternatives makes a model write a text that is no JSON.
#
# outlines-core 0.2.14 makes a regular expression of a schema. It puts the quotation marks of the string around the
# pattern without a group: `^yes|no$` becomes `("yes|no")`, which matches `"yes` and `no"`. Nor are quotation marks of a
# pattern escaped. A pattern with a group of its own, `^(yes|no)$`, is right.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q outlines-core==0.2.14
"$dir/v/bin/python" > "$dir/out" <<'EOF'
import json, re
from outlines_core.json_schema import build_regex_from_schema
for pattern, text in (("^yes|no$", '"yes'), ("^yes|no$", '"yes"'), ('^"$', '"""'), ('^"$', r'"\""'), ("^(yes|no)$", '"yes"')):
    expression = build_regex_from_schema(json.dumps({"type": "string", "pattern": pattern}))
    print(f"{pattern:10} becomes {expression:12} matches {text}: {re.fullmatch(expression, text) is not None}")
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
^yes|no$   becomes ("yes|no")   matches "yes: True
^yes|no$   becomes ("yes|no")   matches "yes": False
^"$        becomes (""")        matches """: True
^"$        becomes (""")        matches "\"": False
^(yes|no)$ becomes ("(yes|no)") matches "yes": True
SEEN
