// The server's routes as the page needs them. Everything is asked for relative to the page, so that a proxy may put
// the server under any path. The key is kept in the tab (sessionStorage), and goes nowhere but to this server.

const KEY = "unmask-key";

export class Refusal extends Error {
  // What the server said, in its own sentence.
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

export function hasKey() {
  return Boolean(sessionStorage.getItem(KEY));
}

export function headers(more = {}) {
  // of a request to this server: with the key, where the tab has one
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

async function checked(response) {
  if (response.ok) return response;
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // no JSON: a proxy's page, say
  }
  throw new Refusal(response.status, message);
}

async function asked(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "the server cannot be reached");
  }
  return checked(response);
}

export async function get(path) {
  return (await asked(path, { headers: headers() })).json();
}

export async function post(path, body, signal) {
  const options = { method: "POST", headers: headers({ "Content-Type": "application/json" }), signal };
  return (await asked(path, { ...options, body: JSON.stringify(body) })).json();
}

export async function startup() {
  // {status: "started"} or how far loading is; without a key
  const response = await fetch("startup");
  return response.json();
}

export async function* stream(path, body, signal) {
  // The objects of a stream of server-sent events, up to [DONE]. Raises Refusal for an error among them.
  const options = { method: "POST", headers: headers({ "Content-Type": "application/json" }), signal };
  const response = await asked(path, { ...options, body: JSON.stringify(body) });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Refusal(0, "the connection ended before the answer did");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice(6);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Refusal(event.error.code ?? 500, event.error.message);
      yield event;
    }
  }
}
