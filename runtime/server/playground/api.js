// Requests to the server. All paths are relative to the page, so that a proxy may serve it under any prefix.
// The key is stored in the tab (sessionStorage) and is sent to this server only.

const KEY = "unmask-key";

export class ApiError extends Error {
  // The message of an error object.
  constructor(status, message, param = null) {
    super(message);
    this.status = status;
    this.param = param; // the field that is refused
  }
}

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export function hasKey() {
  return Boolean(sessionStorage.getItem(KEY));
}

export function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

async function checked(response) {
  if (response.ok) return response;
  let error = { message: `The server returned status ${response.status}.` };
  try {
    error = (await response.json()).error ?? error;
  } catch {
    // not JSON: an error page of a proxy
  }
  throw new ApiError(response.status, error.message, error.param);
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  return checked(response);
}

export async function get(path) {
  return (await request(path, { headers: headers() })).json();
}

export async function post(path, body, signal) {
  const options = { method: "POST", headers: headers({ "Content-Type": "application/json" }), signal };
  return (await request(path, { ...options, body: JSON.stringify(body) })).json();
}

export async function* stream(path, body, signal) {
  // Yields the events of a stream up to [DONE]. Throws ApiError for an error event.
  const options = { method: "POST", headers: headers({ "Content-Type": "application/json" }), signal };
  const response = await request(path, { ...options, body: JSON.stringify(body) });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError(0, "The connection ended before the answer was complete.");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice(6);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.code ?? 500, event.error.message);
      yield event;
    }
  }
}
