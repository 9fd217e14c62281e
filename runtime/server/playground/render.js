// Text as formatted nodes: JSON, or a subset of Markdown (headings, lists, tables, code, emphasis).
// All nodes are created by name and all text becomes text nodes, so that output never becomes markup.
// Links and images keep their Markdown source: output causes no request and leads nowhere.

function node(name, content, className) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...[content ?? []].flat());
  return element;
}

export function rendered(text) {
  const fragment = document.createDocumentFragment();
  const value = asJson(text);
  if (value !== undefined) fragment.append(node("pre", jsonNodes(value), "json"));
  else fragment.append(...blocks(text.split("\n")));
  return fragment;
}

export function asJson(text) {
  // An object or a list; undefined for any other text.
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export function jsonNodes(value, indent = "") {
  const deeper = `${indent}  `;
  if (value === null || typeof value !== "object") {
    const kind = value === null ? "null" : typeof value;
    return [node("span", JSON.stringify(value), `json-${kind}`)];
  }
  const isList = Array.isArray(value);
  const items = isList ? value.map((item) => [null, item]) : Object.entries(value);
  if (!items.length) return [isList ? "[]" : "{}"];
  const nodes = [isList ? "[" : "{"];
  items.forEach(([key, item], i) => {
    nodes.push(`\n${deeper}`);
    if (key !== null) nodes.push(node("span", JSON.stringify(key), "json-key"), ": ");
    nodes.push(...jsonNodes(item, deeper), i < items.length - 1 ? "," : "");
  });
  return [...nodes, `\n${indent}${isList ? "]" : "}"}`];
}

const INLINE = /(`+)(.+?)\1|\*\*(\S(?:.*?\S)?)\*\*|\*(\S(?:.*?\S)?)\*|~~(\S(?:.*?\S)?)~~/;

function inline(text) {
  const nodes = [];
  let rest = text;
  for (let found = INLINE.exec(rest); found; found = INLINE.exec(rest)) {
    if (found.index) nodes.push(rest.slice(0, found.index));
    const [all, , code, strong, emphasis, deleted] = found;
    if (code !== undefined) nodes.push(node("code", code.trim()));
    else if (strong !== undefined) nodes.push(node("strong", inline(strong)));
    else if (emphasis !== undefined) nodes.push(node("em", inline(emphasis)));
    else nodes.push(node("del", inline(deleted)));
    rest = rest.slice(found.index + all.length);
  }
  return rest ? [...nodes, rest] : nodes;
}

const FENCE = /^\s*(`{3,}|~{3,})/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^\s*(-\s*){3,}$|^\s*(\*\s*){3,}$/;
const DELIMITER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function blocks(lines) {
  const nodes = [];
  let i = 0;
  while (i < lines.length) {
    const line = lines[i];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    let end = i + 1;
    if (!line.trim()) {
      // between blocks
    } else if (fence) {
      while (end < lines.length && !lines[end].trim().startsWith(fence[1])) end++;
      nodes.push(node("pre", node("code", lines.slice(i + 1, end).join("\n"))));
      end++;
    } else if (heading) nodes.push(node(`h${Math.min(6, heading[1].length + 2)}`, inline(heading[2])));
    else if (RULE.test(line)) nodes.push(node("hr"));
    else if (line.includes("|") && DELIMITER.test(lines[i + 1] ?? "") && lines[i + 1].includes("-")) {
      while (end < lines.length && lines[end].includes("|")) end++;
      nodes.push(table(lines.slice(i, end)));
    } else if (ITEM.test(line)) {
      while (end < lines.length && (ITEM.test(lines[end]) || /^\s+\S/.test(lines[end]))) end++;
      nodes.push(list(lines.slice(i, end)));
    } else if (line.startsWith(">")) {
      while (end < lines.length && lines[end].startsWith(">")) end++;
      nodes.push(node("blockquote", blocks(lines.slice(i, end).map((each) => each.replace(/^>\s?/, "")))));
    } else {
      while (end < lines.length && lines[end].trim() && !startsBlock(lines, end)) end++;
      const parts = lines.slice(i, end).flatMap((each, n) => [...(n ? [node("br")] : []), ...inline(each)]);
      nodes.push(node("p", parts));
    }
    i = end;
  }
  return nodes;
}

function startsBlock(lines, i) {
  const line = lines[i];
  return (
    FENCE.test(line) || HEADING.test(line) || ITEM.test(line) || line.startsWith(">") ||
    (line.includes("|") && DELIMITER.test(lines[i + 1] ?? ""))
  );
}

function columns(line) {
  return line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map((cell) => cell.trim());
}

function table([head, , ...rows]) {
  const row = (cells, name) => node("tr", cells.map((cell) => node(name, inline(cell))));
  const body = node("tbody", rows.map((line) => row(columns(line), "td")));
  return node("table", [node("thead", row(columns(head), "th")), body]);
}

function list(lines) {
  // Items of the first indentation; deeper lines belong to the item before them.
  const [, indent, marker] = ITEM.exec(lines[0]);
  const items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= indent.length) items.push([found[3], []]);
    else items.at(-1)[1].push(line.slice(Math.min(indent.length + 2, line.search(/\S|$/))));
  }
  const made = items.map(([text, inner]) => node("li", [...inline(text), ...blocks(inner)]));
  return node(/\d/.test(marker) ? "ol" : "ul", made);
}
