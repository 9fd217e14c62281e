// The page itself: what is asked, in how many panes, and what went wrong.

import { Refusal, get, hasKey, setKey, startup } from "./api.js";
import { examplesOf } from "./examples.js";
import { Pane } from "./pane.js";
import { curl, pythonOf } from "./snippets.js";

const find = (id) => document.getElementById(id);
const page = { model: "", schemas: {}, panes: [], history: [], running: null, language: "curl" };

function tell(text, wrong = false) {
  find("status").textContent = text;
  find("status").className = wrong ? "wrong" : "";
}

function failed(error) {
  if (error instanceof Refusal && error.status === 401) {
    find("key-form").hidden = false;
    find("key").focus();
  }
  tell(error.message, true);
}

function messages() {
  const asked = { role: "user", content: find("prompt").value };
  return find("follow").checked ? [...page.history, asked] : [asked];
}

function code() {
  const base = new URL(".", location.href).href;
  const body = page.panes[0]?.body(page.model, messages()) ?? {};
  const write = page.language === "curl" ? curl : pythonOf;
  find("snippet").textContent = write(base, body, hasKey());
}

function past() {
  find("history").replaceChildren(
    ...page.history.map(({ role, content }) => {
      const line = document.createElement("p");
      line.className = role;
      line.textContent = content;
      return line;
    }),
  );
  find("history").hidden = find("forget").hidden = !page.history.length;
}

function panes() {
  const count = find("compare").checked ? 2 : 1;
  while (page.panes.length > count) page.panes.pop().element.remove();
  while (page.panes.length < count) {
    const pane = new Pane("AB"[page.panes.length], page.schemas, code);
    pane.filling.addEventListener("click", () => during((signal) => pane.fill(page.model, signal)));
    page.panes.push(pane);
    find("panes").append(pane.element);
    if (page.panes.length === 2) pane.settings.set("mode", "speed");
  }
}

async function during(work) {
  // Something that takes a while, may be stopped and may fail; one at a time.
  if (page.running || !page.model) return;
  page.running = new AbortController();
  find("run").disabled = true;
  find("stop").disabled = false;
  tell("answering ...");
  try {
    await work(page.running.signal);
    tell("done");
  } catch (error) {
    page.running.abort();
    if (error.name === "AbortError") tell("stopped");
    else failed(error);
  } finally {
    page.running = null;
    find("run").disabled = false;
    find("stop").disabled = true;
    code();
  }
}

function run(event) {
  event?.preventDefault();
  const asked = messages();
  during(async (signal) => {
    const texts = await Promise.all(page.panes.map((pane) => pane.run(page.model, asked, signal)));
    if (!find("follow").checked) return;
    page.history = [...asked, { role: "assistant", content: texts[0] }];
    find("prompt").value = "";
    past();
    find("prompt").focus();
  });
}

function examples() {
  find("examples").replaceChildren(
    ...examplesOf(page.model).map((text) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text.split("\n")[0];
      button.addEventListener("click", () => {
        find("prompt").value = text;
        code();
        run();
      });
      return button;
    }),
  );
}

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

async function loaded() {
  for (;;) {
    const state = await startup().catch(() => null);
    if (state?.status === "started") return;
    tell(state ? `the model is being loaded: ${state.phase}, ${state.percent} %` : "the server cannot be reached", !state);
    await pause(1);
  }
}

async function begin() {
  try {
    await loaded();
    const [models, api] = await Promise.all([get("v1/models"), get("openapi.json")]);
    page.model = models.data[0].id;
    page.schemas = api.components.schemas;
    find("model").textContent = `${page.model}, at most ${models.data[0].max_model_len} tokens`;
    find("key-form").hidden = true;
    tell("");
    find("prompt").focus();
    examples();
    panes();
    code();
  } catch (error) {
    failed(error);
  }
}

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = localStorage.theme = now === "dark" ? "light" : "dark";
}

if (localStorage.theme) document.documentElement.dataset.theme = localStorage.theme;
find("theme").addEventListener("click", theme);
find("ask").addEventListener("submit", run);
find("stop").addEventListener("click", () => page.running?.abort());
find("compare").addEventListener("change", panes);
find("follow").addEventListener("change", code);
find("prompt").addEventListener("input", code);
find("forget").addEventListener("click", () => {
  page.history = [];
  past();
  code();
});
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(find("key").value.trim());
  begin();
});
for (const button of document.querySelectorAll("[data-language]")) {
  button.addEventListener("click", () => {
    page.language = button.dataset.language;
    for (const other of document.querySelectorAll("[data-language]")) {
      other.setAttribute("aria-pressed", other === button);
    }
    code();
  });
}
find("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(find("snippet").textContent);
    tell("copied");
  } catch {
    getSelection().selectAllChildren(find("snippet")); // pages without TLS have no clipboard: the user copies it
    tell("selected: copy it with your keyboard");
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(event);
  else if (event.key === "Escape") page.running?.abort();
});
begin();
