// The messages of a conversation. The pane after them shows the last answer.

import { copy } from "./pane.js";
import { rendered } from "./render.js";

export class Chat {
  constructor(history, system) {
    this.element = history;
    this.system = system;
    this.turns = []; // {user, assistant}; the last one has no assistant while it is running
  }

  messages(prompt) {
    const system = this.system.value.trim();
    const before = this.turns.filter((turn) => turn.assistant !== null);
    return [
      ...(system ? [{ role: "system", content: system }] : []),
      ...before.flatMap((turn) => [{ role: "user", content: turn.user }, { role: "assistant", content: turn.assistant }]),
      { role: "user", content: prompt },
    ];
  }

  begin(prompt) {
    // Returns the messages of the request.
    this.turns = this.turns.filter((turn) => turn.assistant !== null);
    const messages = this.messages(prompt);
    this.turns.push({ user: prompt, assistant: null });
    this.#show();
    return messages;
  }

  retry() {
    // Removes the last turn and returns its prompt.
    return this.turns.pop().user;
  }

  finish(text) {
    this.turns.at(-1).assistant = text;
  }

  clear() {
    this.turns = [];
    this.#show();
  }

  #show() {
    const bubbles = this.turns.flatMap((turn, i) => [
      bubble("user", "You", turn.user),
      ...(i < this.turns.length - 1 ? [bubble("assistant", "Model", turn.assistant)] : []),
    ]);
    this.element.replaceChildren(...bubbles);
  }
}

function bubble(role, name, text) {
  const element = document.createElement("article");
  const head = document.createElement("h2");
  const content = document.createElement("div");
  element.className = `bubble ${role}`;
  head.textContent = name;
  content.className = "content";
  if (role === "user") content.textContent = text;
  else {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", () => copy(text, button));
    head.append(button);
    content.append(rendered(text));
  }
  element.append(head, content);
  return element;
}
