// Swagger UI for this server's OpenAPI document, with the key of the playground if there is one.

import { get, hasKey, headers, setKey } from "./api.js";

const form = document.getElementById("key-form");

function withKey(request) {
  if (new URL(request.url, location.href).origin === location.origin) {
    request.headers = { ...headers(), ...request.headers };
  }
  return request;
}

async function begin() {
  try {
    const state = await (await fetch("playground/state")).json();
    form.hidden = !state.api_key_required || hasKey();
    if (!form.hidden) return;
    const spec = await get("openapi.json");
    window.SwaggerUIBundle({ spec, dom_id: "#docs", requestInterceptor: withKey });
  } catch (error) {
    form.hidden = error.status !== 401;
    document.getElementById("docs").textContent = error.message;
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(document.getElementById("key").value.trim());
  begin();
});
begin();
