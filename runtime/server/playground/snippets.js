// The request as code to copy. The key never stands in it.

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`; // of a POSIX shell
}

function python(value, indent = "") {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  const deeper = `${indent}    `;
  if (Array.isArray(value)) return `[${value.map((item) => python(item, indent)).join(", ")}]`;
  if (typeof value === "object") {
    const items = Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${python(item, deeper)}`);
    return `{${items.join(", ")}}`;
  }
  return JSON.stringify(value);
}

const OWN = new Set(["messages", "model", "max_tokens", "temperature", "top_p", "seed"]); // of the openai client

export function curl(base, body, needsKey) {
  const key = needsKey ? ` \\\n  -H "Authorization: Bearer $UNMASK_API_KEY"` : "";
  return `curl -N ${quoted(`${base}v1/chat/completions`)} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d ${quoted(JSON.stringify(body))}`;
}

export function pythonOf(base, body, needsKey) {
  const { stream, stream_mode, stream_options, ...rest } = body;
  const own = Object.entries(rest).filter(([name]) => OWN.has(name));
  const extra = Object.fromEntries(Object.entries(rest).filter(([name]) => !OWN.has(name)));
  const key = needsKey ? 'os.environ["UNMASK_API_KEY"]' : '"none"';
  const lines = own.map(([name, value]) => `    ${name}=${python(value)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${python(extra)},`);
  return [
    ...(needsKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${base}v1`)}, api_key=${key})`,
    "stream = client.chat.completions.create(",
    ...lines,
    "    stream=True,",
    ")",
    "for chunk in stream:",
    "    if chunk.choices:",
    '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
  ].join("\n");
}
