// What tokens look like: the bytes of each id, asked of the server once, and their text in a run, where a character's
// bytes may be several tokens'.

import { post } from "./api.js";

const known = new Map(); // id -> Uint8Array, or null for a special token

export async function learn(ids) {
  const unknown = [...new Set(ids)].filter((id) => !known.has(id));
  if (!unknown.length) return;
  const answer = await post("detokenize", { tokens: unknown, return_bytes: true });
  unknown.forEach((id, i) => known.set(id, answer.bytes[i] && new Uint8Array(answer.bytes[i])));
}

export function isSpecial(id) {
  return known.get(id) === null;
}

export function texts(ids) {
  // The text of each of these consecutive tokens (null: a mask); a character stands at the token that completes it.
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
