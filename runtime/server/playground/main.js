// The page: its tabs, what a run sends, the API key and errors.

import { ApiError, get, hasKey, post, setKey } from "./api.js";
import { Chat } from "./chat.js";
import { GapsInput, StructuredInput, ToolsInput } from "./formats.js";
import { Pane, copy } from "./pane.js";
import { COMPARED, examplesOf } from "./presets.js";
import { curlOf, pythonOf } from "./snippets.js";
import { themed } from "./theme.js";
import { define } from "./tokens.js";

const find = (id) => document.getElementById(id);
const TABS = [...document.querySelectorAll("[data-tab]")];
const PROMPTS = { chat: "Message", infill: "Question that the text answers (optional)" };
const page = { tab: "prompt", model: "", api: null, panes: {}, prompts: {}, running: null, language: "curl" };

const chat = new Chat(find("history"), find("system"));
const structured = new StructuredInput(code);
const tools = new ToolsInput(code);
const gaps = new GapsInput(code);

// --- status, key

function setStatus(text, wrong = false) {
  find("status").textContent = text;
  find("status").className = wrong ? "wrong" : "";
}

function failed(error) {
  if (error instanceof ApiError && error.status === 401) {
    askForKey();
    setStatus("The server does not accept this API key.", true);
  } else setStatus(error.message, true);
}

function askForKey() {
  find("key-form").hidden = false;
  find("key").focus();
}

// --- panes: those of each tab are preserved while another tab is shown

function panes() {
  return (page.panes[page.tab] ??= [newPane()]);
}

function newPane(preset) {
  const pane = new Pane(Boolean(preset), code);
  if (page.api) pane.configure(page.api, preset);
  pane.find(".fill").addEventListener("click", () => during((signal) => pane.refill(page.model, signal, seed())));
  pane.element.addEventListener("results", ({ detail }) => sendResults(pane, detail));
  pane.find(".live").addEventListener("click", () => {
    find("prompt").value = page.recording.prompt;
    run();
  });
  return pane;
}

function compare() {
  const before = panes()[0];
  page.prompts[page.tab] = find("prompt").value;
  if (find("compare").checked) page.panes[page.tab] = COMPARED.map((preset) => newPane(preset));
  else page.panes[page.tab] = [newPane()];
  before.player.pause();
  show();
}

function show() {
  const { tab } = page;
  const infill = tab === "infill";
  find("panes").replaceChildren(...panes().map((pane) => pane.element));
  find("panes").className = panes().length > 1 ? "two" : "";
  for (const id of ["structured", "tools", "infill"]) find(id).hidden = tab !== id;
  find("chat").hidden = find("forget").hidden = find("regenerate").hidden = tab !== "chat";
  find("regenerate").disabled = !chat.turns.length;
  find("compare-label").hidden = !["prompt", "structured"].includes(tab);
  find("compare").checked = panes().length > 1;
  find("prompt-label").textContent = PROMPTS[tab] ?? "Prompt";
  find("prompt").value = page.prompts[tab] ?? "";
  find("prompt").rows = infill ? 1 : 2;
  // A chat reads from top to bottom; elsewhere the input comes first.
  if (tab === "chat") find("work").insertBefore(find("panes"), find("composer"));
  else find("work").insertBefore(find("composer"), find("panes"));
  examples();
  code();
}

function choose(tab) {
  if (page.running || tab === page.tab) return;
  for (const pane of panes()) pane.player.pause();
  page.prompts[page.tab] = find("prompt").value;
  page.tab = tab;
  for (const button of TABS) {
    const selected = button.dataset.tab === tab;
    button.setAttribute("aria-selected", selected);
    button.tabIndex = selected ? 0 : -1;
  }
  find("work").setAttribute("aria-labelledby", `tab-${tab}`);
  setStatus("");
  show();
}

// --- runs

function seed() {
  return Math.floor(Math.random() * 2 ** 31);
}

function input() {
  // {extra, check} of the tab, or {error}
  if (page.tab === "structured") return structured.result;
  if (page.tab === "tools") return tools.result;
  if (page.tab === "infill") return gaps.error ? { error: gaps.error } : {};
  return {};
}

async function during(work) {
  // One run at a time, which can be stopped and may fail.
  if (page.running || !page.model) return;
  page.running = new AbortController();
  find("run").disabled = true;
  find("stop").disabled = false;
  setStatus("Running");
  try {
    await work(page.running.signal);
    setStatus("Done");
  } catch (error) {
    page.running.abort();
    if (error.name === "AbortError") setStatus("Stopped");
    else failed(error);
  } finally {
    page.running = null;
    find("run").disabled = false;
    find("stop").disabled = true;
    find("regenerate").disabled = !chat.turns.length;
    code();
  }
}

function run(event, again = false) {
  event?.preventDefault();
  const { extra = {}, check, error } = input();
  if (error) {
    setStatus(error, true);
    return;
  }
  during((signal) => RUNS[page.tab]({ model: page.model, extra, check, seed: seed(), signal }, again));
}

async function promptRun(options) {
  const messages = [{ role: "user", content: find("prompt").value }];
  await Promise.all(panes().map((pane) => pane.run({ ...options, messages })));
}

async function chatRun(options, again) {
  const prompt = again ? chat.retry() : find("prompt").value;
  const [pane] = panes();
  const messages = chat.begin(prompt);
  if (!again) find("prompt").value = "";
  // The same prompt again: sampled, because a greedy answer would be the same.
  const greedy = !(pane.settings.body().temperature ?? page.api["x-unmask-defaults"]?.temperature);
  const extra = again && greedy ? { temperature: 1 } : {};
  const { text } = await pane.run({ ...options, messages, extra });
  chat.finish(text);
  if (find("composer").contains(document.activeElement)) find("prompt").focus();
}

async function infillRun(options) {
  const [pane] = panes();
  const question = find("prompt").value;
  const messages = question ? [{ role: "user", content: question }] : null;
  const first = gaps.segments[0].text ?? "";
  const counted = messages ? { messages } : { prompt: first };
  const { count } = await post("tokenize", counted, options.signal);
  const own = messages ? 0 : (await post("tokenize", { prompt: first, add_special_tokens: false }, options.signal)).count;
  pane.reset();
  pane.messages = messages;
  await pane.infill({ ...options, messages, segments: gaps.segments, before: count - own });
}

const RUNS = { prompt: promptRun, structured: promptRun, tools: promptRun, chat: chatRun, infill: infillRun };

function sendResults(pane, { calls, results }) {
  const called = calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
  const messages = [
    ...pane.messages,
    { role: "assistant", content: null, tool_calls: called },
    ...calls.map(({ id }, i) => ({ role: "tool", tool_call_id: id, content: results[i] })),
  ];
  during(async (signal) => {
    await pane.run({ model: page.model, messages, extra: tools.result.extra, seed: seed(), signal });
    pane.setCaption(`after ${calls.map(({ name }, i) => `${name} returned ${results[i]}`).join(", ")}`);
  });
}

// --- examples, code

function examples() {
  const groups = examplesOf(page.model);
  const shown = page.tab === "prompt" ? [["Watch it think", groups.watch], ["Quick", groups.quick]] : [["Try", groups[page.tab]]];
  find("examples").replaceChildren(
    ...shown.map(([name, prompts]) => {
      const group = document.createElement("div");
      const title = document.createElement("h2");
      title.textContent = name;
      group.className = "group";
      group.append(title, ...prompts.map(exampleButton));
      return group;
    }),
  );
  find("examples").hidden = !page.model;
}

function exampleButton({ prompt, preset, text }) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = (page.tab === "infill" ? text : prompt).split("\n")[0];
  const note = panes()[0].settings?.presets.find((each) => each.key === preset)?.name;
  if (note) {
    const small = document.createElement("small");
    small.textContent = note.split(":")[0].toLowerCase();
    button.append(" ", small);
  }
  button.addEventListener("click", () => {
    if (page.running) return;
    find("prompt").value = prompt;
    if (text) gaps.set(text);
    if (panes().length === 1) panes()[0].settings.use(preset ?? "default");
    run();
  });
  return button;
}

function code() {
  if (!page.api || !panes()[0].settings) return;
  const base = new URL(".", location.href).href;
  const { extra } = input();
  const [pane] = panes();
  const prompt = find("prompt").value;
  let path = "v1/chat/completions";
  let body;
  if (page.tab === "infill") {
    path = "v1/infill";
    const { max_tokens, ...settings } = pane.settings.body();
    const messages = prompt ? { messages: [{ role: "user", content: prompt }] } : {};
    body = { model: page.model, text: gaps.text.value, ...messages, ...settings, stream: true };
  } else {
    const messages = page.tab === "chat" ? chat.messages(prompt) : [{ role: "user", content: prompt }];
    body = pane.body(page.model, messages, extra);
  }
  const write = page.language === "curl" ? curlOf : pythonOf;
  find("snippet").textContent = write(base, path, body, hasKey());
}

// --- start

async function replay() {
  const recording = await (await fetch("playground/recording.json")).json();
  page.recording = recording;
  define(recording.bytes);
  const [pane] = panes();
  if (!pane.timeline.length && !page.running && page.tab === "prompt") pane.replay(recording);
}

const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

async function loaded() {
  for (;;) {
    const state = await fetch("playground/state").then((response) => response.json()).catch(() => null);
    if (state) {
      find("change-key").hidden = !state.api_key_required;
      if (state.api_key_required && !hasKey()) return false;
      if (state.loaded) return true;
    }
    setStatus(state ? `Loading the model: ${state.phase}, ${state.percent} %` : "The server cannot be reached.", !state);
    await wait(1);
  }
}

function useExamples({ infill, structured: objects, tools: calls }) {
  page.prompts.infill = infill[0].prompt;
  gaps.set(infill[0].text);
  page.prompts.structured = objects[0].prompt;
  page.prompts.tools = calls[0].prompt;
}

async function begin() {
  try {
    if (!(await loaded())) {
      find("model").textContent = "locked";
      askForKey();
      return;
    }
    const [models, api] = await Promise.all([get("v1/models"), get("openapi.json")]);
    const isFirst = !page.model; // later ones follow a change of the key, and leave what the user has typed
    page.model = models.data[0].id;
    page.api = api;
    for (const pane of Object.values(page.panes).flat()) if (!pane.settings) pane.configure(api);
    find("model").textContent = page.model;
    find("model").title = `at most ${models.data[0].max_model_len} tokens`;
    find("key-form").hidden = true;
    find("run").disabled = false;
    setStatus("");
    page.prompts[page.tab] = find("prompt").value;
    if (isFirst) useExamples(examplesOf(page.model));
    show();
  } catch (error) {
    failed(error);
  }
}

themed(find("theme"));
for (const button of TABS) button.addEventListener("click", () => choose(button.dataset.tab));
find("tabs").addEventListener("keydown", (event) => {
  const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!move) return;
  const next = TABS[(TABS.findIndex((button) => button.dataset.tab === page.tab) + move + TABS.length) % TABS.length];
  choose(next.dataset.tab);
  next.focus();
});
find("composer").addEventListener("submit", run);
find("stop").addEventListener("click", () => page.running?.abort());
find("regenerate").addEventListener("click", (event) => run(event, true));
find("forget").addEventListener("click", () => {
  chat.clear();
  panes()[0].reset();
  find("regenerate").disabled = true;
  code();
});
find("compare").addEventListener("change", compare);
for (const id of ["prompt", "system"]) find(id).addEventListener("input", code);
find("change-key").addEventListener("click", askForKey);
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(find("key").value.trim());
  setStatus("");
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
find("copy").addEventListener("click", (event) => copy(find("snippet").textContent, event.currentTarget));
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(event);
  else if (event.key === "Escape") page.running?.abort();
});
find("panes").replaceChildren(panes()[0].element);
replay().catch(() => undefined); // a page without its recording still works
begin();
