#!/bin/sh
# A validator with format checks takes dates whose year is not four digits.
#
# jsonschema_rs 0.60.3 accepts "199/-12-31" and "-023-02-28" as a date of RFC 3339, section 5.6. A grammar that is tested
# by "accepts what the validator accepts" has to leave such strings out.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q jsonschema-rs==0.60.3 jsonschema==4.26.0
"$dir/v/bin/python" > "$dir/out" <<'EOF'
import jsonschema, jsonschema_rs
schema = {"type": "string", "format": "date"}
rust = jsonschema_rs.validator_for(schema, validate_formats=True)
python = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
for text in ("2024-02-29", "2023-02-29", "199/-12-31", "-023-02-28", "000--01-01"):
    print(text, "jsonschema_rs", rust.is_valid(text), "jsonschema", python.is_valid(text))
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
2024-02-29 jsonschema_rs True jsonschema True
2023-02-29 jsonschema_rs False jsonschema False
199/-12-31 jsonschema_rs True jsonschema False
-023-02-28 jsonschema_rs True jsonschema False
000--01-01 jsonschema_rs True jsonschema False
SEEN
