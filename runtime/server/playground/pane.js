// One answer on the page: its settings, its tokens, the slider over its steps, its figures.
// Whatever comes from the server or the user is shown as text; no markup is ever made of it.

import { stream } from "./api.js";
import { Settings } from "./settings.js";
import { Timeline } from "./timeline.js";
import { isSpecial, learn, texts } from "./tokens.js";

const REPLAY = 250; // ms a step

export class Pane {
  constructor(name, schemas, changed) {
    this.element = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    const find = (selector) => this.element.querySelector(selector);
    this.answer = find(".answer");
    this.answer.setAttribute("aria-label", `answer ${name}`);
    this.slider = find(".steps");
    this.place = find(".at");
    this.playing = find(".play");
    this.numbers = find(".numbers");
    this.settings = new Settings(find(".settings"), find("summary"), schemas, changed);
    this.timeline = new Timeline();
    this.slider.addEventListener("input", () => {
      this.#pause();
      this.show(Number(this.slider.value));
    });
    this.playing.addEventListener("click", () => this.#play());
    this.answer.addEventListener("keydown", (event) => this.#key(event));
    this.refill = find(".refill");
    this.filling = find(".fill");
    this.markedTokens = find(".marked-tokens");
    this.mark = null; // first and last marked cell
    document.addEventListener("selectionchange", () => this.#selected());
  }

  async run(model, messages, signal) {
    // The answer's text, once it is whole.
    this.#pause();
    this.#marked(null);
    this.messages = messages;
    this.whole = false;
    this.timeline = new Timeline();
    this.text = "";
    this.numbers.replaceChildren();
    this.#steps();
    const began = performance.now();
    let usage = null;
    let reason = null;
    for await (const chunk of stream("v1/chat/completions", this.body(model, messages), signal)) {
      usage = chunk.usage ?? usage;
      this.timeline.promptTokens = usage?.prompt_tokens ?? 0;
      const choice = chunk.choices[0];
      this.text += choice?.delta.content ?? "";
      reason = choice?.finish_reason ?? reason;
      if (chunk.denoise) {
        await learn(chunk.denoise.tokens);
        this.timeline.add(chunk.denoise);
        this.#steps();
      }
    }
    const seconds = (performance.now() - began) / 1000;
    this.timeline.end(usage?.completion_tokens ?? 0);
    this.whole = true;
    this.#steps();
    this.#figures(usage, this.timeline.steps.at(-1)?.nfe ?? 0, seconds, reason);
    return this.text;
  }

  async fill(model, signal) {
    // The marked tokens anew, with what stands around them, before and behind.
    const cells = this.timeline.at(this.timeline.length).filter((cell) => !isSpecial(cell.id));
    const [first, last] = this.mark;
    const written = (part) => texts(part.map((cell) => cell.id)).join("");
    const segments = [
      { text: written(cells.slice(0, first)) },
      { mask: Math.min(last + 1, cells.length) - first },
      { text: written(cells.slice(last + 1)) },
    ];
    const open = cells.map((cell, i) =>
      i < first || i > last ? { id: cell.id, kind: "stable", fresh: false } : { id: null, kind: "mask", fresh: false },
    );
    const { max_tokens, ...settings } = this.settings.body(); // holes say how long they are
    this.#pause();
    this.#marked(null);
    this.timeline = new Timeline(open, this.timeline.promptTokens);
    this.#steps();
    const began = performance.now();
    const body = { model, messages: this.messages, segments, ...settings, stream: true };
    let final = null;
    for await (const event of stream("v1/infill", body, signal)) {
      if (event.event === "final") final = event;
      else {
        await learn(event.tokens);
        this.timeline.add(event);
        this.#steps();
      }
    }
    this.timeline.end(open.length);
    this.#steps();
    this.text = final.text;
    this.#figures({ completion_tokens: segments[1].mask }, final.nfe, (performance.now() - began) / 1000, "filled");
    return this.text;
  }

  body(model, messages) {
    return {
      model,
      messages,
      ...this.settings.body(),
      stream: true,
      stream_mode: "denoise",
      stream_options: { include_usage: true, continuous_usage_stats: true },
    };
  }

  #figures(usage, forwards, seconds, reason) {
    const tokens = usage?.completion_tokens ?? 0;
    const figures = {
      tokens,
      forwards,
      "tokens per forward": forwards ? (tokens / forwards).toFixed(2) : "-",
      seconds: seconds.toFixed(2),
      "ended by": reason ?? "-",
    };
    this.numbers.replaceChildren(
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

  #steps() {
    const count = this.timeline.length;
    this.slider.max = count;
    this.slider.value = count;
    this.slider.disabled = this.playing.disabled = count === 0;
    this.show(count);
  }

  show(count) {
    // The answer as it stood after `count` steps.
    const cells = this.timeline.at(count);
    const shown = texts(cells.map((cell) => cell.id));
    this.answer.replaceChildren(
      ...cells.map((cell, i) => {
        const span = document.createElement("span");
        span.className = `cell ${cell.kind}${cell.fresh ? " fresh" : ""}`;
        if (cell.kind === "mask") {
          span.setAttribute("role", "img");
          span.setAttribute("aria-label", "mask");
        } else if (isSpecial(cell.id)) {
          span.classList.add("special");
          span.textContent = "\u25AA";
        } else {
          span.textContent = shown[i];
        }
        span.dataset.place = i;
        if (this.mark && i >= this.mark[0] && i <= this.mark[1]) span.classList.add("marked");
        return span;
      }),
    );
    this.slider.setAttribute("aria-valuetext", `step ${count} of ${this.timeline.length}`);
    this.place.textContent = this.timeline.length ? `${count} / ${this.timeline.length}` : "";
  }

  #selected() {
    // what the mouse has selected in this answer, as whole tokens
    const selection = getSelection();
    if (!this.whole || selection.isCollapsed || !this.answer.contains(selection.anchorNode)) return;
    const place = (node) => node?.parentElement?.closest(".cell")?.dataset.place ?? node?.dataset?.place;
    const ends = [place(selection.anchorNode), place(selection.focusNode)];
    if (ends.includes(undefined)) return;
    this.#marked(ends.map(Number).sort((a, b) => a - b));
  }

  #marked(ends) {
    this.mark = ends;
    this.refill.hidden = !ends;
    const count = ends ? ends[1] - ends[0] + 1 : 0;
    this.markedTokens.textContent = `${count} ${count === 1 ? "token" : "tokens"}`;
    for (const cell of this.answer.children) {
      const here = Number(cell.dataset.place);
      cell.classList.toggle("marked", Boolean(ends) && here >= ends[0] && here <= ends[1]);
    }
  }

  #extend(event) {
    // by keyboard: Shift and arrows move the mark's end, with Ctrl its start
    if (!this.whole || !event.shiftKey) return false;
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return false;
    const [first, last] = this.mark ?? [0, -1];
    const most = this.answer.children.length - 1;
    const ends = event.ctrlKey ? [first + move, last] : [first, last + move];
    const fits = ends[0] >= 0 && ends[1] <= most && ends[0] <= ends[1];
    this.#marked(fits ? ends : null);
    return true;
  }

  #key(event) {
    if (this.#extend(event)) {
      event.preventDefault();
      return;
    }
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === " ") this.#play();
    else if (move && this.timeline.length) {
      this.#pause();
      const place = Math.max(0, Math.min(this.timeline.length, Number(this.slider.value) + move));
      this.slider.value = place;
      this.show(place);
    } else return;
    event.preventDefault();
  }

  #play() {
    if (this.timer) return this.#pause();
    if (!this.timeline.length) return undefined;
    let place = Number(this.slider.value);
    if (place >= this.timeline.length) place = 0;
    const turn = () => {
      this.slider.value = place;
      this.show(place);
      if (place++ >= this.timeline.length) this.#pause();
    };
    this.timer = setInterval(turn, REPLAY);
    this.playing.textContent = "Pause";
    turn();
    return undefined;
  }

  #pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.playing.textContent = "Play";
  }
}
