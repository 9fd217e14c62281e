"""References within one JSON schema: ``$ref``, ``$dynamicRef``, ``$recursiveRef``, anchors and embedded ``$id``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from runtime.structured_output.patterns import Unsupported

_DATA = ("const", "enum", "default", "example", "examples")  # keywords whose values are not schemas


class References:
    """Resolves the references of one schema document (JSON Schema 2020-12 core, 8.2; earlier drafts likewise).

    Attributes:
        has_one_of: Whether the document has a ``oneOf``, which a stricter alternative would make accept more values.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._bases: dict[int, str] = {}  # by identity of a subschema
        self._resources: dict[str, Any] = {"": root}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic: dict[str, list[Any]] = {}
        self._recursive = 0  # embedded schemas that `$recursiveRef` may resolve to, in addition to the root
        self.has_one_of = False
        self._index()

    def find(self, reference: object, origin: Mapping[str, Any]) -> Any:
        """Resolves the ``$ref`` of the subschema `origin`.

        Raises:
            ValueError: The target is outside the document or does not exist.
        """
        if not isinstance(reference, str):
            raise ValueError("must be a text")
        base = self._bases.get(id(origin), "")
        address, fragment = urldefrag(base + reference if reference.startswith("#") else urljoin(base, reference))
        resource = self._resources.get(address)
        if resource is None:
            raise Unsupported(f"{_short(reference)} is outside of the schema; put its target into $defs")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get((address, fragment))
        else:
            found = _at(resource, fragment)
        if not isinstance(found, bool | Mapping):
            raise ValueError(f"{_short(reference)} names nothing in the schema; add its target, or correct it")
        return found

    def find_dynamic(self, reference: object, origin: Mapping[str, Any]) -> Any:
        """Resolves a ``$dynamicRef`` whose target does not depend on the path of evaluation.

        Raises:
            ValueError: There is no target, or several are possible.
        """
        name = urldefrag(reference)[1] if isinstance(reference, str) else ""
        named = self._dynamic.get(name, [])
        if len(named) > 1:
            raise Unsupported(f"{_short(str(reference))} has {len(named)} possible targets; write $ref")
        return named[0] if named else self.find(reference, origin)

    def find_recursive(self, origin: Mapping[str, Any]) -> Any:
        """Resolves a ``$recursiveRef``, as `find_dynamic` does."""
        if self._recursive:
            raise Unsupported("has several possible targets; write $ref")
        return self.find("#", origin)

    def _index(self) -> None:
        pending: list[tuple[Any, str]] = [(self._root, "")]
        while pending:
            value, base = pending.pop()
            if isinstance(value, list):
                pending += [(item, base) for item in value if isinstance(item, dict | list)]
            if not isinstance(value, Mapping):
                continue
            base = self._entered(value, base)
            self._bases[id(value)] = base
            self.has_one_of = self.has_one_of or "oneOf" in value
            for keyword, found in value.items():
                if keyword not in _DATA and isinstance(found, dict | list):
                    pending.append((found, base))

    def _entered(self, value: Mapping[str, Any], base: str) -> str:
        """Registers the names of a subschema; returns the base of its references."""
        for keyword in ("$id", "id"):
            own = value.get(keyword)
            if isinstance(own, str) and own:
                address, fragment = urldefrag(urljoin(base, own))
                if fragment:  # before draft 2019-09 this was an anchor
                    self._anchors.setdefault((address or base, fragment), value)
                elif keyword == "$id" or value is self._root:
                    base = address
                    self._resources.setdefault(address, value)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := value.get(keyword), str):
                self._anchors.setdefault((base, anchor), value)
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, []).append(value)
        self._recursive += value.get("$recursiveAnchor") is True and value is not self._root
        return base


def _at(resource: Any, pointer: str) -> Any:
    """Resolves a JSON pointer (RFC 6901); None if there is no target."""
    found = resource
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(part)
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
