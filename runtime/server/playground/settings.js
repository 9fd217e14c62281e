// The settings of one pane, built from the server's OpenAPI document and its defaults.

import { PRESETS } from "./presets.js";

const NAMES = {
  algorithm: "Unmasking algorithm",
  mode: "Preset of the algorithm",
  accept_threshold: "Confidence threshold",
  max_tokens: "Maximum tokens",
  temperature: "Temperature",
  top_p: "Top-p",
  top_k: "Top-k",
  seed: "Seed",
  block_length: "Block length",
  force_single_batch: "Run alone in its batch",
  add_block_threshold: "Open next block at progress",
  semi_complete_threshold: "Force next block at progress",
  token_stability_threshold: "Open next block at stability",
  confidence_metric: "Confidence metric",
  step_remainder: "Steps with one position more",
  max_steps_per_block: "Maximum steps per block",
  suppress_eos: "Suppress end of sequence",
  steps: "Steps per block",
  edit_threshold: "Edit threshold",
  max_post_edit_steps: "Maximum edit steps",
  penalty_lambda: "Repetition penalty of edits",
  entropy_bound: "Entropy bound",
  factor: "Factor",
  low_threshold: "Lower threshold",
  remask_threshold: "Remask threshold",
};
const FIRST = ["algorithm", "mode", "accept_threshold"];
const SAMPLING = ["max_tokens", "temperature", "top_p", "top_k", "seed"];
const SLIDERS = new Set(["accept_threshold"]);
const HUGE = 2 ** 31;

function kindOf(field) {
  return (field.anyOf ?? [field]).find((kind) => kind.type !== "null") ?? field;
}

function flat(properties, prefix = "") {
  // {name, kind, help, rules} of each field; those of inner objects as outer.inner
  return Object.entries(properties).flatMap(([name, field]) => {
    const kind = kindOf(field);
    if (kind.properties) return flat(kind.properties, `${prefix}${name}.`);
    return [{ name: prefix + name, kind, help: field.description ?? "", rules: field["x-unmask-rules"] }];
  });
}

function title(name) {
  const text = NAMES[name] ?? name.replaceAll(/[._]/g, " ");
  return text[0].toUpperCase() + text.slice(1);
}

function range(kind) {
  const low = kind.minimum ?? kind.exclusiveMinimum;
  const high = kind.maximum;
  if (kind.enum || low === undefined) return "";
  if (high === undefined || high >= HUGE) return low > -HUGE ? `from ${low}` : "";
  return `${kind.exclusiveMinimum === undefined ? "" : "above "}${low} to ${high}`;
}

export class Settings {
  constructor(element, api, changed) {
    this.defaults = api["x-unmask-defaults"] ?? { decoding: {}, algorithms: {} };
    this.controls = new Map();
    this.summary = element.querySelector("summary");
    this.preset = element.querySelector(".preset");
    this.changed = changed;
    const schemas = api.components.schemas;
    const body = schemas.ChatRequest?.properties ?? {};
    const decoding = flat(schemas.Decoding?.properties ?? {});
    const [few, more] = element.querySelectorAll(".fields");
    for (const name of FIRST) {
      const field = decoding.find((each) => each.name === name);
      if (field) this.#add(few, { ...field, inside: true });
    }
    for (const name of SAMPLING.filter((each) => each in body)) {
      this.#add(few, { name, kind: kindOf(body[name]), help: body[name].description ?? "", inside: false });
    }
    for (const field of decoding) if (!FIRST.includes(field.name)) this.#add(more, { ...field, inside: true });
    this.#presets(schemas);
    element.addEventListener("input", (event) => this.#edited(event));
    element.addEventListener("change", (event) => this.#edited(event));
    element.querySelector(".reset").addEventListener("click", () => this.use("default"));
    this.#show();
  }

  #presets(schemas) {
    const known = schemas.Decoding?.properties ?? {};
    const accepts = ([name, value]) => name in known && (kindOf(known[name]).enum?.includes(value) ?? true);
    this.presets = PRESETS.filter((preset) => Object.entries(preset.decoding).every(accepts));
    this.preset.append(...this.presets.map(({ key, name }) => new Option(name, key)), new Option("Custom", "custom"));
    this.preset.options[this.preset.options.length - 1].disabled = true;
  }

  #add(element, field) {
    const label = document.createElement("label");
    const choices = field.kind.enum ?? (field.kind.type === "boolean" ? ["true", "false"] : null);
    const input = document.createElement(choices ? "select" : "input");
    const hint = document.createElement("small");
    hint.textContent = range(field.kind);
    label.append(title(field.name), input);
    if (choices) input.append(new Option("", ""), ...choices.map((choice) => new Option(choice, choice)));
    else {
      input.type = "number";
      input.step = field.kind.type === "integer" ? "1" : "any";
      if (hint.textContent) label.append(hint);
    }
    input.dataset.name = field.name;
    label.title = field.help;
    let slider = null;
    if (SLIDERS.has(field.name)) {
      slider = document.createElement("input");
      Object.assign(slider, { type: "range", min: field.kind.minimum, max: field.kind.maximum, step: 0.01 });
      slider.setAttribute("aria-label", `${title(field.name)}, slider`);
      slider.addEventListener("input", () => (input.value = slider.value));
    }
    const item = document.createElement("div");
    item.className = slider ? "field wide" : "field";
    item.append(label, ...(slider ? [slider] : []));
    element.append(item);
    this.controls.set(field.name, { ...field, input, slider, item });
  }

  #edited(event) {
    if (event.target === this.preset) {
      this.use(this.preset.value);
      return;
    }
    if (event.target.dataset.name || event.target.type === "range") this.preset.value = "custom";
    this.#show();
    this.changed();
  }

  #default(name) {
    const algorithm = this.#value("algorithm") ?? this.defaults.decoding.algorithm;
    const own = this.defaults.algorithms[algorithm] ?? {};
    const mode = own.modes?.[this.#value("mode")] ?? {};
    return mode[name] ?? own.fields?.[name] ?? this.defaults.decoding[name] ?? this.defaults[name];
  }

  #show() {
    // Only the fields that the algorithm reads, each with its default.
    const algorithm = this.#value("algorithm") ?? this.defaults.decoding.algorithm;
    for (const [name, { rules, item, input, slider }] of this.controls) {
      const modes = Object.keys(this.defaults.algorithms[algorithm]?.modes ?? {});
      item.hidden = name === "mode" ? !modes.length : Boolean(rules?.length) && !rules.includes(algorithm);
      const value = this.#default(name);
      let text = value === undefined || value === null || value === "" ? "none" : String(value);
      if (name === "max_tokens" && text === "none") text = "rest of the context";
      if (name === "seed") text = "random";
      if (input.tagName === "SELECT") input.options[0].textContent = `${text} (default)`;
      else input.placeholder = `${text} (default)`;
      if (slider) slider.value = input.value === "" ? value ?? 0 : input.value;
    }
    const values = Object.entries(this.values()).map(([name, value]) => `${title(name).toLowerCase()} ${value}`);
    const { value, selectedOptions } = this.preset;
    const custom = values.join(", ") || "server default";
    this.title = value === "custom" ? custom : selectedOptions[0]?.text ?? "";
    this.summary.textContent = `Settings: ${this.title}`;
  }

  #value(name) {
    const control = this.controls.get(name);
    if (!control || control.input.value === "") return undefined;
    if (control.kind.type === "boolean") return control.input.value === "true";
    return control.kind.enum ? control.input.value : Number(control.input.value);
  }

  values() {
    // The fields that differ from the default.
    const values = {};
    for (const [name, { item }] of this.controls) {
      const value = item.hidden ? undefined : this.#value(name);
      if (value !== undefined) values[name] = value;
    }
    return values;
  }

  use(key) {
    // Applies a preset and resets all other fields.
    const preset = this.presets.find((each) => each.key === key) ?? this.presets[0];
    for (const { input } of this.controls.values()) input.value = "";
    for (const [name, value] of Object.entries(preset.decoding)) {
      const control = this.controls.get(name);
      if (control) control.input.value = value;
    }
    this.preset.value = preset.key;
    this.#show();
    this.changed();
  }

  body() {
    // The fields of a request, those of denoising under `decoding`.
    const body = {};
    const decoding = {};
    for (const [name, value] of Object.entries(this.values())) {
      if (!this.controls.get(name).inside) {
        body[name] = value;
        continue;
      }
      const [outer, inner] = name.split(".");
      if (inner) (decoding[outer] ??= {})[inner] = value;
      else decoding[outer] = value;
    }
    if (Object.keys(decoding).length) body.decoding = decoding;
    return body;
  }
}
