#!/bin/sh
# A function that only lists the variables of a template changes the template.
#
# In Jinja2 3.1.6 `meta.find_undeclared_variables` folds constants of the tree that it gets: a list, tuple or dictionary
# of constants becomes one constant. The template renders the same. A program that then looks for texts in the tree, to
# translate them or to mark special tokens of a chat template, does not find those inside of lists.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q jinja2==3.1.6
"$dir/v/bin/python" > "$dir/out" <<'EOF'
from jinja2 import Environment, meta, nodes
for source in ("{{ '-'.join(['a', name]) }}", "{{ '-'.join(['a', 'b']) }}", "{{ f({'a': 'b'}) }}", "{{ 'a' ~ 'b' ~ name }}"):
    environment = Environment()
    tree = environment.parse(source)
    def texts():
        return [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    before = texts()
    names = sorted(meta.find_undeclared_variables(tree))
    print(f"{source}: variables {names}, texts before {before}, after {texts()}")
EOF
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
{{ '-'.join(['a', name]) }}: variables ['name'], texts before ['-', 'a'], after ['-', 'a']
{{ '-'.join(['a', 'b']) }}: variables [], texts before ['-', 'a', 'b'], after ['-']
{{ f({'a': 'b'}) }}: variables ['f'], texts before ['a', 'b'], after []
{{ 'a' ~ 'b' ~ name }}: variables ['name'], texts before ['a', 'b'], after ['a', 'b']
SEEN
