// One answer: its tokens and formatted view, the player, the figures and the settings.

import { ApiError, post, stream } from "./api.js";
import { Player } from "./player.js";
import { asJson, jsonNodes, rendered } from "./render.js";
import { Settings } from "./settings.js";
import { Timeline } from "./timeline.js";
import { TokenView } from "./token_view.js";
import { isSpecial, learn, texts } from "./tokens.js";

const HINT = "Point at a token, tap it or use the arrow keys to see its step, confidence and runner-up.";
const TOP = 2; // log-probabilities per token: the token and its runner-up

export class Pane {
  constructor(isCompared, changed) {
    this.element = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    const find = (selector) => this.element.querySelector(selector);
    this.find = find;
    this.changed = changed;
    this.isCompared = isCompared; // then its caption names its settings
    this.answer = find(".answer");
    this.answer.setAttribute("aria-label", "tokens of the answer");
    this.timeline = new Timeline();
    this.tokens = new TokenView(this.answer, (index) => this.#inspect(index));
    this.player = new Player(find(".player"), (count) => this.show(count));
    this.text = "";
    this.check = null; // (text, finished) -> {ok, message}
    this.settings = null; // until the server describes them
    this.setCaption("");
    for (const button of this.element.querySelectorAll("[data-view]")) {
      button.addEventListener("click", () => this.setView(button.dataset.view));
    }
    this.answer.addEventListener("mark", () => this.#marked());
    find(".copy-answer").addEventListener("click", (event) => copy(this.text, event.currentTarget));
    this.#inspect(null);
  }

  configure(api, preset) {
    this.settings = new Settings(this.find(".settings"), api, () => {
      if (this.isCompared) this.setCaption(this.settings?.title ?? "");
      this.changed();
    });
    this.find(".settings").hidden = this.find(".live").disabled = false;
    if (preset) this.settings.use(preset);
  }

  setCaption(text) {
    this.find(".caption").textContent = text || "Answer";
  }

  setView(view) {
    for (const button of this.element.querySelectorAll("[data-view]")) {
      button.setAttribute("aria-pressed", button.dataset.view === view);
    }
    this.answer.hidden = view !== "tokens";
    this.find(".formatted").hidden = view === "tokens";
    this.#format();
  }

  // --- runs

  body(model, messages, extra = {}, seed = undefined) {
    return {
      model,
      messages,
      ...(seed === undefined ? {} : { seed }),
      ...this.settings.body(),
      ...extra,
      stream: true,
      stream_mode: "denoise",
      stream_options: { include_usage: true, continuous_usage_stats: true },
    };
  }

  async run({ model, messages, extra, seed, signal, check }) {
    // Streams an answer. Returns its text and tool calls.
    this.reset();
    this.messages = messages;
    this.check = check ?? null;
    this.timeline.begin();
    const scores = this.timeline.run.scores;
    const began = performance.now();
    let usage = null;
    let reason = null;
    const body = this.body(model, messages, extra, seed);
    for await (const chunk of chat(body, signal)) {
      usage = chunk.usage ?? usage;
      this.timeline.run.promptTokens = usage?.prompt_tokens ?? 0;
      const choice = chunk.choices[0];
      this.text += choice?.delta.content ?? "";
      for (const call of choice?.delta.tool_calls ?? []) this.#addCall(call);
      scores.push(...(choice?.logprobs?.content ?? []).map(score));
      reason = choice?.finish_reason ?? reason;
      if (chunk.denoise) {
        await learn(chunk.denoise.tokens);
        this.timeline.add(chunk.denoise);
        this.show(this.timeline.length);
      }
    }
    this.#finish(usage?.completion_tokens ?? 0, (performance.now() - began) / 1000, reason, body.seed);
    if (this.calls.length) this.#addResultForm();
    return { text: this.text, calls: this.calls };
  }

  async infill({ model, messages, segments, seed, signal, before = 0 }) {
    // Fills the gaps of `segments`: {ids} or {text} that stay and {mask}. Tokens of `ids` keep their steps.
    const { max_tokens, ...settings } = this.settings.body(); // the gaps have a length
    const initial = [];
    for (const segment of segments) {
      if (segment.mask) {
        initial.push(...Array.from({ length: segment.mask }, () => ({ id: null, kind: "mask", step: 0, filled: true })));
      } else if (segment.text) {
        const { tokens } = await post("tokenize", { prompt: segment.text, add_special_tokens: false }, signal);
        await learn(tokens);
        const same = segment.cells?.length === tokens.length;
        initial.push(...tokens.map((id, i) => ({ id, kind: "stable", step: same ? segment.cells[i].step : 0, filled: false })));
      }
    }
    this.timeline.begin(before, initial);
    this.show(this.timeline.length);
    this.tokens.markable = false;
    const began = performance.now();
    const pieces = segments.map(({ text, mask }) => (mask ? { mask } : { text })).filter(({ text, mask }) => mask || text);
    const body = { model, segments: pieces, ...(messages ? { messages } : {}), seed, ...settings, stream: true };
    let final = null;
    for await (const event of stream("v1/infill", body, signal)) {
      if (event.event === "final") final = event;
      else {
        await learn(event.tokens);
        this.timeline.add(event);
        this.show(this.timeline.length);
      }
    }
    this.text = final.text;
    this.find(".filled-key").hidden = false;
    this.#finish(initial.length, (performance.now() - began) / 1000, "filled", body.seed, final.holes.reduce((sum, hole) => sum + hole.token_ids.length, 0));
    return this.text;
  }

  async refill(model, signal, seed) {
    // Fills the marked tokens again; the text around them stays.
    const cells = this.timeline.at(this.timeline.length);
    let [first, last] = this.tokens.mark;
    const textOf = (part) => texts(part.map((cell) => cell.id)).join("");
    const fixedText = (part) => ({ text: textOf(part), cells: part });
    const end = cells.findIndex((cell) => isSpecial(cell.id));
    const visible = end < 0 ? cells : cells.slice(0, end);
    const before = this.timeline.run.promptTokens;
    // Text around a gap is tokenized again. The gap grows until that yields the tokens of the answer.
    const unchanged = async (part) => {
      if (!part.length) return true;
      const { tokens } = await post("tokenize", { prompt: textOf(part), add_special_tokens: false }, signal);
      return tokens.length === part.length && tokens.every((id, i) => id === part[i].id);
    };
    while (first > 0 && !(await unchanged(visible.slice(0, first)))) first--;
    while (last < visible.length - 1 && !(await unchanged(visible.slice(last + 1)))) last++;
    this.tokens.setMark([first, last]);
    const segments = [fixedText(visible.slice(0, first)), { mask: Math.min(last + 1, visible.length) - first }, fixedText(visible.slice(last + 1))];
    this.player.pause();
    return this.infill({ model, messages: this.messages, segments, seed, signal, before });
  }

  reset() {
    this.player.pause();
    this.timeline = new Timeline();
    this.text = "";
    this.calls = [];
    this.tokens.markable = false;
    this.tokens.setMark(null);
    this.tokens.setCursor(null);
    for (const name of [".numbers", ".calls"]) this.find(name).replaceChildren();
    for (const name of [".refill", ".live", ".verdict", ".filled-key"]) this.find(name).hidden = true;
    this.find(".copy-answer").disabled = true;
    this.setCaption(this.isCompared ? this.settings?.title ?? "" : "");
    this.show(0);
  }

  replay(recording) {
    // Shows a recorded run: all at once for users who prefer reduced motion.
    this.reset();
    this.text = recording.text;
    this.timeline.begin(recording.prompt_tokens);
    for (const step of recording.steps) this.timeline.add(step);
    this.timeline.run.scores = recording.scores.map(([p, other, otherP]) => ({ p, other, otherP }));
    this.timeline.end(recording.tokens);
    this.setCaption(`Recorded answer to “${recording.prompt}”`);
    this.find(".live").hidden = this.find(".copy-answer").disabled = false;
    this.#figures({ tokens: recording.tokens, steps: this.timeline.forwards });
    const reduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.show(reduced ? this.timeline.length : 0);
    if (!reduced) this.player.play();
  }

  #finish(tokens, seconds, reason, seed, generated = tokens) {
    this.timeline.end(tokens);
    this.show(this.timeline.length);
    this.tokens.markable = Boolean(this.text) && !this.calls?.length;
    this.find(".refill").hidden = !this.tokens.markable;
    this.find(".copy-answer").disabled = !this.text;
    this.#marked();
    this.#figures({ tokens: generated, steps: this.timeline.forwards, seconds, finish: reason, seed });
  }

  // --- views

  show(count) {
    const { length, finished } = this.timeline;
    const cells = this.timeline.at(count);
    this.count = count;
    this.element.classList.toggle("finished", finished && count === length);
    this.tokens.show(cells, count, length);
    this.player.set(count, length);
    this.current = cells;
    this.#format();
    this.#judge(cells);
    this.#inspect(this.tokens.cursor);
  }

  #format() {
    const target = this.find(".formatted");
    if (target.hidden) return;
    const atEnd = this.count === this.timeline.length && this.timeline.finished;
    const shown = texts((this.current ?? []).map((cell) => cell.id));
    const text = atEnd ? this.text : shown.map((part, i) => (this.current[i].kind === "mask" ? "\u2592" : part)).join("");
    target.replaceChildren(rendered(text));
  }

  #judge(cells) {
    const verdict = this.find(".verdict");
    verdict.hidden = !this.check || !this.timeline.length;
    if (verdict.hidden) return;
    const masks = cells.filter((cell) => cell.kind === "mask").length;
    if (this.count < this.timeline.length || !this.timeline.finished) {
      verdict.textContent = `${masks} ${masks === 1 ? "mask" : "masks"} left in the open blocks`;
      verdict.className = "verdict state";
      return;
    }
    const { ok, message } = this.check(this.text);
    verdict.textContent = message;
    verdict.className = `verdict state ${ok ? "ok" : "wrong"}`;
  }

  #inspect(index) {
    const line = this.find(".inspector");
    const cell = index === null ? null : this.current?.[index];
    if (!cell) {
      line.textContent = HINT;
      return;
    }
    if (cell.kind === "mask") {
      line.textContent = "Mask: not decided yet.";
      return;
    }
    const parts = [isSpecial(cell.id) ? "special token" : `“${texts([cell.id])[0] || "part of a character"}”`];
    parts.push(cell.step ? `step ${cell.step} of ${this.timeline.length}` : "part of the given text");
    const known = this.timeline.score(index);
    if (known) {
      parts.push(`confidence ${percent(known.p)}`);
      if (known.other !== null) parts.push(`runner-up “${known.other}” ${percent(known.otherP)}`);
    } else if (!this.timeline.finished) parts.push("confidence known once the block is final");
    else parts.push("confidence not available");
    line.textContent = parts.join(" · ");
  }

  #marked() {
    const { mark } = this.tokens;
    const count = mark ? mark[1] - mark[0] + 1 : 0;
    this.find(".fill").disabled = !count;
    this.find(".marked-tokens").textContent = count
      ? `${count} marked ${count === 1 ? "token" : "tokens"}; the rest of the answer stays`
      : "Mark tokens above: click one, drag over several, or use Shift and the arrow keys.";
  }

  #figures({ tokens, steps, seconds, finish, seed }) {
    const figures = { tokens, steps, "tokens per step": steps ? (tokens / steps).toFixed(2) : "n/a" };
    if (seconds !== undefined) figures.seconds = seconds.toFixed(2);
    if (finish) figures.finish = finish;
    if (seed !== undefined) figures.seed = seed;
    this.find(".numbers").replaceChildren(
      ...Object.entries(figures).map(([name, value]) => {
        const pair = document.createElement("div");
        const term = document.createElement("dt");
        const number = document.createElement("dd");
        term.textContent = name;
        number.textContent = value;
        number.dataset.figure = name;
        pair.append(term, number);
        return pair;
      }),
    );
  }

  // --- tool calls

  #addResultForm() {
    const form = document.createElement("form");
    form.className = "bar";
    const inputs = this.calls.map((call) => {
      const label = document.createElement("label");
      const input = document.createElement("input");
      input.type = "text";
      input.value = calculated(call.arguments);
      label.append(`Result of ${call.name} `, input);
      form.append(label);
      return input;
    });
    const button = document.createElement("button");
    button.textContent = "Send result";
    form.append(button);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const detail = { calls: this.calls, results: inputs.map((input) => input.value) };
      this.element.dispatchEvent(new CustomEvent("results", { detail }));
    });
    this.find(".calls").append(form);
  }

  #addCall(delta) {
    const call = (this.calls[delta.index] ??= { id: delta.id, name: "", arguments: "" });
    call.name += delta.function?.name ?? "";
    call.arguments += delta.function?.arguments ?? "";
    this.find(".calls").replaceChildren(...this.calls.map(callCard));
  }
}

async function* chat(body, signal) {
  // With log-probabilities, unless the server refuses them: a very long answer may have too many.
  const path = "v1/chat/completions";
  try {
    yield* stream(path, { ...body, logprobs: true, top_logprobs: TOP }, signal);
  } catch (error) {
    if (!(error instanceof ApiError) || !["logprobs", "top_logprobs"].includes(error.param)) throw error;
    yield* stream(path, body, signal);
  }
}

function callCard({ name, arguments: text }) {
  const card = document.createElement("div");
  const title = document.createElement("h3");
  const pre = document.createElement("pre");
  card.className = "call";
  title.textContent = `Call of ${name}`;
  const value = asJson(text);
  pre.append(...(value === undefined ? [text] : jsonNodes(value)));
  card.append(title, pre);
  return card;
}

const SUM = /^\s*(-?\d+(?:\.\d+)?)\s*([-+*/x])\s*(-?\d+(?:\.\d+)?)\s*$/;

function calculated(text) {
  // The value of an expression of two numbers among the arguments, as a suggestion; "" for other calls.
  const found = Object.values(asJson(text) ?? {}).map((value) => SUM.exec(value)).find(Boolean);
  if (!found) return "";
  const [a, b] = [Number(found[1]), Number(found[3])];
  return String({ "+": a + b, "-": a - b, "*": a * b, x: a * b, "/": a / b }[found[2]]);
}

function score({ token, logprob, top_logprobs }) {
  const other = top_logprobs.find((each) => each.token !== token);
  return { p: Math.exp(logprob), other: other?.token ?? null, otherP: other ? Math.exp(other.logprob) : 0 };
}

function percent(p) {
  const value = 100 * p;
  if (value > 99.95) return "100 %";
  return value < 0.05 ? "< 0.1 %" : `${value.toFixed(1)} %`;
}

export async function copy(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed"; // pages without TLS have no clipboard
  }
  setTimeout(() => (button.textContent = label), 1500);
}
