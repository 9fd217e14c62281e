// The text of tokens. The server returns the bytes of each id once; a character may have the bytes of several tokens.

import { post } from "./api.js";

const known = new Map(); // id -> Uint8Array, or null for a special token

export function define(bytesById) {
  // For recordings: {id: bytes or null}.
  for (const [id, bytes] of Object.entries(bytesById)) known.set(Number(id), bytes && new Uint8Array(bytes));
}

export async function learn(ids) {
  const unknown = [...new Set(ids)].filter((id) => id !== null && !known.has(id));
  if (!unknown.length) return;
  const answer = await post("detokenize", { tokens: unknown, return_bytes: true });
  unknown.forEach((id, i) => known.set(id, answer.bytes[i] && new Uint8Array(answer.bytes[i])));
}

export function isSpecial(id) {
  return known.get(id) === null;
}

export function texts(ids) {
  // The text of each of these consecutive tokens (null: a mask). A character belongs to the token that completes it.
  let decoder = new TextDecoder();
  return ids.map((id) => {
    const bytes = id === null ? null : known.get(id);
    if (!bytes) {
      decoder = new TextDecoder();
      return "";
    }
    return decoder.decode(bytes, { stream: true });
  });
}
