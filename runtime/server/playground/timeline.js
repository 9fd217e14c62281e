// The steps of one answer, and what the answer looked like after each of them. No document, no network.

export class Timeline {
  constructor(initial = [], promptTokens = 0) {
    this.initial = initial; // cells before the first step: a text with holes has some
    this.promptTokens = promptTokens;
    this.steps = []; // {start, tokens, masked, nfe}
    this.tokens = null; // of the answer, once it has ended: what its last block holds beyond them is none of it
  }

  add(denoise) {
    this.steps.push({ ...denoise, masked: new Set(denoise.masked) });
  }

  end(tokens) {
    this.tokens = tokens;
  }

  get length() {
    return this.steps.length;
  }

  at(count) {
    // The cells after `count` steps: {id, kind}, kind one of stable, draft, mask; `fresh` where this step set the token.
    const cells = this.initial.map((cell) => ({ ...cell }));
    for (let n = 0; n < Math.min(count, this.steps.length); n++) {
      const { start, tokens, masked } = this.steps[n];
      for (const cell of cells) cell.fresh = false;
      for (let i = 0; i < Math.min(start - this.promptTokens, cells.length); i++) cells[i].kind = "stable";
      tokens.forEach((id, i) => {
        const place = start + i - this.promptTokens;
        if (place < 0) return; // the end of the prompt, which shares the answer's first block
        const before = cells[place];
        const now = { id: masked.has(i) ? null : id, kind: masked.has(i) ? "mask" : "draft", fresh: false };
        now.fresh = now.kind === "draft" && (!before || before.id !== id);
        cells[place] = now;
      });
    }
    if (this.tokens === null || count < this.steps.length) return cells;
    for (const cell of cells) cell.kind = "stable";
    return cells.slice(0, this.tokens);
  }
}
