// The inputs of structured output, tools and gaps, each checked while the user types.

import { asJson } from "./render.js";
import { SCHEMA, TOOLS } from "./presets.js";
import { schemaError, violations } from "./schema.js";

const find = (id) => document.getElementById(id);

function setState(element, message, ok) {
  element.textContent = message;
  element.className = `state ${ok ? "ok" : "wrong"}`;
}

function parsed(text) {
  // {value} or {error}
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { error: `Not valid JSON: ${error.message}.` };
  }
}

const FORMATS = {
  json_schema: {
    name: "JSON schema",
    label: "Schema",
    initial: JSON.stringify(SCHEMA, null, 2),
    read(text) {
      const { value: schema, error } = parsed(text);
      if (error) return { error };
      if (schemaError(schema)) return { error: schemaError(schema) };
      const extra = { response_format: { type: "json_schema", json_schema: { name: "answer", schema } } };
      return { extra, message: "Valid schema.", check: (answer) => checkJson(answer, schema) };
    },
  },
  regex: {
    name: "Regular expression",
    label: "Regular expression that the complete answer matches",
    initial: "[0-9]{1,4}",
    read(text) {
      try {
        const pattern = new RegExp(`^(?:${text})$`, "u");
        const check = (answer) => ({ ok: pattern.test(answer), message: pattern.test(answer) ? "Matches the expression." : "Does not match the expression." });
        return { extra: { structured_outputs: { regex: text } }, message: "Valid expression.", check };
      } catch (error) {
        return { error: `${error.message}.` };
      }
    },
  },
  choice: {
    name: "Choice",
    label: "Choices, one per line",
    initial: "yes\nno",
    read(text) {
      const choices = text.split("\n").filter(Boolean);
      if (!choices.length) return { error: "Write at least one choice." };
      const check = (answer) => ({ ok: choices.includes(answer), message: choices.includes(answer) ? "One of the choices." : "Not one of the choices." });
      return { extra: { structured_outputs: { choice: choices } }, message: `${choices.length} choices.`, check };
    },
  },
  json_object: {
    name: "Any JSON object",
    label: "No further rules",
    initial: "",
    read: () => ({
      extra: { response_format: { type: "json_object" } },
      message: "Any JSON object.",
      check: (answer) => checkJson(answer, { type: "object" }),
    }),
  },
};

function checkJson(answer, schema) {
  const value = asJson(answer);
  if (value === undefined) return { ok: false, message: "The answer is not valid JSON." };
  const found = violations(value, schema);
  return found.length ? { ok: false, message: `Violates the schema: ${found.join("; ")}.` } : { ok: true, message: "Valid JSON that matches the schema." };
}

export class StructuredInput {
  constructor(changed) {
    this.select = find("format");
    this.text = find("format-text");
    this.select.append(...Object.entries(FORMATS).map(([key, { name }]) => new Option(name, key)));
    this.select.addEventListener("change", () => {
      const format = FORMATS[this.select.value];
      this.text.value = format.initial;
      this.text.hidden = !format.initial;
      find("format-label").textContent = format.label;
      this.update(changed);
    });
    this.text.value = FORMATS.json_schema.initial;
    this.text.addEventListener("input", () => this.update(changed));
    this.update();
  }

  update(changed) {
    this.result = FORMATS[this.select.value].read(this.text.value);
    setState(find("format-state"), this.result.error ?? this.result.message, !this.result.error);
    changed?.();
  }
}

export class ToolsInput {
  constructor(changed) {
    this.text = find("tools-text");
    this.text.value = JSON.stringify(TOOLS, null, 2);
    this.text.addEventListener("input", () => this.update(changed));
    this.update();
  }

  update(changed) {
    const { value, error } = parsed(this.text.value);
    const problem = error ?? toolsError(value);
    const names = problem ? [] : value.map((tool) => tool.function.name);
    this.result = problem ? { error: problem } : { extra: { tools: value } };
    setState(find("tools-state"), problem || `Functions: ${names.join(", ")}.`, !problem);
    changed?.();
  }
}

function toolsError(tools) {
  if (!Array.isArray(tools) || !tools.length) return "Write a list of at least one tool.";
  for (const [i, tool] of tools.entries()) {
    if (tool?.type !== "function") return `Tool ${i + 1}: "type" must be "function".`;
    if (!/^[\w-]{1,64}$/.test(tool.function?.name ?? "")) return `Tool ${i + 1}: "function.name" must have letters, digits, _ or -.`;
    const problem = schemaError(tool.function.parameters ?? {});
    if (problem) return `Tool ${i + 1}: parameters: ${problem}`;
  }
  return "";
}

const GAP = /<mask:(\d{1,4})>/g;

export class GapsInput {
  constructor(changed) {
    this.text = find("gaps");
    this.text.addEventListener("input", () => this.update(changed));
    find("insert-gap").addEventListener("click", () => {
      const length = Math.max(1, Number(find("gap-length").value) || 1);
      this.text.setRangeText(`<mask:${length}>`, this.text.selectionStart, this.text.selectionEnd, "end");
      this.text.focus();
      this.update(changed);
    });
    this.update();
  }

  set(text) {
    this.text.value = text;
    this.update();
  }

  update(changed) {
    this.segments = [];
    let at = 0;
    for (const found of this.text.value.matchAll(GAP)) {
      if (found.index > at) this.segments.push({ text: this.text.value.slice(at, found.index) });
      this.segments.push({ mask: Number(found[1]) });
      at = found.index + found[0].length;
    }
    if (at < this.text.value.length) this.segments.push({ text: this.text.value.slice(at) });
    const gaps = this.segments.filter((segment) => "mask" in segment);
    const tokens = gaps.reduce((sum, gap) => sum + gap.mask, 0);
    const empty = gaps.some((gap) => !gap.mask);
    this.error = empty ? "A gap has at least one token." : gaps.length ? "" : "Insert at least one gap.";
    setState(find("gaps-state"), this.error || `${gaps.length} ${gaps.length === 1 ? "gap" : "gaps"}, ${tokens} tokens.`, !this.error);
    changed?.();
  }
}
