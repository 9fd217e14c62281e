// Swagger UI over this server's own description, with the key of the page where there is one.

import { get, headers, setKey } from "./api.js";

const form = document.getElementById("key-form");

function withKey(request) {
  if (new URL(request.url, location.href).origin === location.origin) {
    request.headers = { ...headers(), ...request.headers };
  }
  return request;
}

async function begin() {
  try {
    const spec = await get("openapi.json");
    form.hidden = true;
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
