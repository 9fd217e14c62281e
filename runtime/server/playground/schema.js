// Checks a value against a JSON schema: the keywords that structured output supports most often.

const TYPES = {
  object: (value) => value !== null && typeof value === "object" && !Array.isArray(value),
  array: Array.isArray,
  string: (value) => typeof value === "string",
  number: (value) => typeof value === "number",
  integer: Number.isInteger,
  boolean: (value) => typeof value === "boolean",
  null: (value) => value === null,
};

export function schemaError(schema) {
  // Why this is not a schema; "" if it may be one.
  if (typeof schema === "boolean") return "";
  if (!TYPES.object(schema)) return "A schema must be an object.";
  for (const type of [schema.type ?? []].flat()) {
    if (!(type in TYPES)) return `"${type}" is not a type; there are ${Object.keys(TYPES).join(", ")}.`;
  }
  if (!Array.isArray(schema.anyOf ?? [])) return '"anyOf" must be a list of schemas.';
  const inner = [...Object.values(schema.properties ?? {}), ...[schema.items ?? []].flat(), ...(schema.anyOf ?? [])];
  return inner.map(schemaError).find(Boolean) ?? "";
}

export function violations(value, schema, path = "the answer") {
  // Sentences, one per violation.
  if (schema === true || schema === undefined) return [];
  if (schema === false) return [`${path} must not be there`];
  const found = [];
  const types = [schema.type ?? []].flat();
  if (types.length && !types.some((type) => TYPES[type]?.(value))) return [`${path} must be of type ${types.join(" or ")}`];
  if (schema.enum && !schema.enum.some((item) => same(item, value))) found.push(`${path} must be one of the enum`);
  if ("const" in schema && !same(schema.const, value)) found.push(`${path} must be ${JSON.stringify(schema.const)}`);
  if (typeof value === "number") {
    if (value < schema.minimum) found.push(`${path} must be at least ${schema.minimum}`);
    if (value > schema.maximum) found.push(`${path} must be at most ${schema.maximum}`);
  }
  if (typeof value === "string") {
    if ([...value].length < schema.minLength) found.push(`${path} is too short`);
    if ([...value].length > schema.maxLength) found.push(`${path} is too long`);
    if (schema.pattern && !matches(schema.pattern, value)) found.push(`${path} does not match the pattern`);
  }
  if (Array.isArray(value)) {
    if (value.length < schema.minItems) found.push(`${path} has too few items`);
    if (value.length > schema.maxItems) found.push(`${path} has too many items`);
    if (schema.items) found.push(...value.flatMap((item, i) => violations(item, schema.items, `${path}[${i}]`)));
  } else if (TYPES.object(value)) {
    for (const name of schema.required ?? []) if (!Object.hasOwn(value, name)) found.push(`${path} lacks "${name}"`);
    for (const [name, item] of Object.entries(value)) {
      const own = Object.hasOwn(schema.properties ?? {}, name) ? schema.properties[name] : schema.additionalProperties;
      found.push(...violations(item, own, `"${name}"`));
    }
  }
  if (schema.anyOf && !schema.anyOf.some((one) => !violations(value, one).length)) {
    found.push(`${path} matches no schema of anyOf`);
  }
  return found;
}

function same(a, b) {
  return JSON.stringify(a) === JSON.stringify(b);
}

function matches(pattern, text) {
  try {
    return new RegExp(pattern, "u").test(text);
  } catch {
    return true; // a syntax that only the server knows
  }
}
