// The tokens of an answer as colored cells, with a cursor and a marked range.
// Text of the server or the user only becomes text nodes, never markup.

import { isSpecial, texts } from "./tokens.js";

const COLORS = 10;

export class TokenView {
  constructor(element, inspect) {
    this.element = element;
    this.inspect = inspect; // called with the index of the inspected cell, or null
    this.mark = null; // first and last marked cell
    this.cursor = null;
    this.markable = false;
    this.cells = [];
    element.addEventListener("pointerover", (event) => this.#hover(event));
    element.addEventListener("pointerleave", () => inspect(this.cursor));
    element.addEventListener("click", (event) => this.#click(event));
    element.addEventListener("keydown", (event) => this.#key(event));
    document.addEventListener("selectionchange", () => this.#selected());
  }

  show(cells, step, steps) {
    // Changes only the cells that differ, so that hovering and selections survive a step.
    const shown = texts(cells.map((cell) => cell.id));
    this.cells = cells;
    while (this.element.childElementCount > cells.length) this.element.lastElementChild.remove();
    cells.forEach((cell, i) => {
      let span = this.element.children[i];
      if (!span) {
        span = document.createElement("span");
        span.dataset.index = i;
        this.element.append(span);
      }
      this.#update(span, cell, shown[i], step, steps);
    });
    this.#paint();
  }

  #update(span, cell, text, step, steps) {
    const classes = ["cell", cell.kind];
    let content = text;
    if (cell.kind === "mask") content = "\u00A0";
    else if (isSpecial(cell.id)) {
      classes.push("special");
      content = "\u25AA";
    }
    if (cell.kind !== "mask" && cell.step) {
      classes.push(`s${Math.min(COLORS - 1, Math.floor(((cell.step - 1) * COLORS) / Math.max(steps, COLORS)))}`);
      if (cell.step === step) classes.push("fresh");
    }
    if (cell.filled) classes.push("filled");
    const name = classes.join(" ");
    if (span.dataset.classes !== name) span.className = span.dataset.classes = name;
    if (span.textContent !== content) span.textContent = content;
  }

  setMark(ends) {
    this.mark = ends;
    this.#paint();
    this.element.dispatchEvent(new CustomEvent("mark"));
  }

  setCursor(index) {
    this.cursor = index;
    this.#paint();
    this.inspect(index);
  }

  #paint() {
    [...this.element.children].forEach((span, i) => {
      span.classList.toggle("marked", Boolean(this.mark) && i >= this.mark[0] && i <= this.mark[1]);
      span.classList.toggle("cursor", i === this.cursor);
    });
  }

  #index(node) {
    const span = (node?.nodeType === Node.TEXT_NODE ? node.parentElement : node)?.closest?.(".cell");
    return span && this.element.contains(span) ? Number(span.dataset.index) : null;
  }

  #hover(event) {
    const index = this.#index(event.target);
    if (index !== null && event.pointerType === "mouse") this.inspect(index);
  }

  #click(event) {
    const index = this.#index(event.target);
    if (index === null || !getSelection().isCollapsed) return;
    const from = event.shiftKey && this.mark ? this.mark[0] : index;
    if (this.markable) this.setMark([Math.min(from, index), Math.max(from, index)]);
    this.setCursor(index);
  }

  #selected() {
    const selection = getSelection();
    if (!this.markable || selection.isCollapsed || !this.element.contains(selection.anchorNode)) return;
    const ends = [this.#index(selection.anchorNode), this.#index(selection.focusNode)];
    if (!ends.includes(null)) this.setMark(ends.sort((a, b) => a - b));
  }

  #key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !this.cells.length) return;
    event.preventDefault();
    const last = this.cells.length - 1;
    const before = this.cursor ?? (move > 0 ? -1 : last + 1);
    const index = Math.max(0, Math.min(last, before + move));
    if (this.markable && event.shiftKey && this.mark) {
      const anchor = this.mark[0] === before ? this.mark[1] : this.mark[0];
      this.setMark([Math.min(anchor, index), Math.max(anchor, index)]);
    } else if (this.markable) this.setMark([index, index]);
    this.setCursor(index);
  }
}
