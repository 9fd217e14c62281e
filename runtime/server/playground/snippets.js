// The request as code to copy. The key is never part of it.

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

// parameters of the openai client; all others go into `extra_body`
const OWN = new Set(["messages", "model", "max_tokens", "temperature", "top_p", "seed", "response_format", "tools"]);

export function curlOf(base, path, body, needsKey) {
  const key = needsKey ? ` \\\n  -H "Authorization: Bearer $UNMASK_API_KEY"` : "";
  return `curl -N ${quoted(`${base}${path}`)} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d ${quoted(JSON.stringify(body))}`;
}

export function pythonOf(base, path, body, needsKey) {
  const key = needsKey ? 'os.environ["UNMASK_API_KEY"]' : '"none"';
  const head = [
    ...(needsKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${base}v1`)}, api_key=${key})`,
  ];
  const { stream, stream_mode, stream_options, ...rest } = body;
  if (!path.endsWith("chat/completions")) {
    const target = JSON.stringify(path.replace(/^v1/, ""));
    return [...head, `answer = client.post(${target}, cast_to=object, body=${python(rest)})`, 'print(answer["text"])'].join("\n");
  }
  const own = Object.entries(rest).filter(([name]) => OWN.has(name));
  const extra = Object.fromEntries(Object.entries(rest).filter(([name]) => !OWN.has(name)));
  const lines = own.map(([name, value]) => `    ${name}=${python(value)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${python(extra)},`);
  return [
    ...head,
    "stream = client.chat.completions.create(",
    ...lines,
    "    stream=True,",
    ")",
    "for chunk in stream:",
    "    if chunk.choices:",
    '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
  ].join("\n");
}
