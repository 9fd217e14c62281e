// The form of one pane's settings, made from the server's own description of what a request may hold.

const LIMIT = "max_tokens";
const LEFT_OUT = "as the server has it";

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

function control(kind) {
  const choices = kind.enum ?? (kind.type === "boolean" ? ["true", "false"] : null);
  if (choices) {
    const select = document.createElement("select");
    select.append(new Option(LEFT_OUT, ""), ...choices.map((choice) => new Option(choice, choice)));
    return select;
  }
  const input = document.createElement("input");
  input.type = "number";
  input.step = kind.type === "integer" ? "1" : "any";
  const low = kind.minimum ?? kind.exclusiveMinimum;
  if (low !== undefined) input.min = low;
  if (kind.maximum !== undefined && kind.maximum < 2 ** 31) input.max = kind.maximum;
  input.placeholder = LEFT_OUT;
  return input;
}

function read(element, kind) {
  if (element.value === "") return undefined;
  if (kind.type === "boolean") return element.value === "true";
  return kind.enum ? element.value : Number(element.value);
}

export class Settings {
  constructor(place, summary, schemas, changed) {
    this.summary = summary;
    this.controls = new Map();
    const body = schemas.ChatRequest?.properties ?? {};
    const plain = [LIMIT, "temperature", "top_p", "top_k", "seed"].filter((name) => name in body);
    const decoding = flat(schemas.Decoding?.properties ?? {});
    const first = ["mode", "algorithm"];
    decoding.sort((a, b) => first.includes(b.name) - first.includes(a.name));
    const [few, more] = place.querySelectorAll(".fields");
    for (const field of decoding.slice(0, 2)) this.#add(few, { ...field, inside: true });
    for (const name of plain) {
      this.#add(few, { name, kind: kindOf(body[name]), help: body[name].description ?? "", inside: false });
    }
    for (const field of decoding.slice(2)) this.#add(more, { ...field, inside: true });
    for (const kind of ["input", "change"]) {
      place.addEventListener(kind, () => {
        this.#show();
        changed();
      });
    }
    this.#show();
  }

  #add(place, field) {
    const label = document.createElement("label");
    const element = control(field.kind);
    element.dataset.name = field.name;
    label.append(field.name, element);
    label.title = field.help;
    place.append(label);
    this.controls.set(field.name, { ...field, element, label });
  }

  #show() {
    // of the rules' fields those that the chosen rule reads
    const rule = this.controls.get("algorithm")?.element.value;
    for (const { rules, label } of this.controls.values()) {
      label.hidden = Boolean(rules?.length) && !rules.includes(rule);
    }
    const told = Object.entries(this.#given()).map(([name, value]) => `${name} ${value}`);
    this.summary.textContent = `Settings: ${told.join(", ") || "the server's own"}`;
  }

  #given() {
    const given = {};
    for (const [name, { element, kind, label }] of this.controls) {
      const value = label.hidden ? undefined : read(element, kind);
      if (value !== undefined) given[name] = value;
    }
    return given;
  }

  set(name, value) {
    const found = this.controls.get(name);
    if (!found) return;
    found.element.value = value;
    this.#show();
  }

  body() {
    // of a request: what is set, with the fields of denoising under `decoding`
    const body = {};
    const decoding = {};
    for (const [name, value] of Object.entries(this.#given())) {
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
