// The denoising steps of one answer and the cells after each of them. No document, no network.
//
// A cell is {id, kind, step, filled}: kind is "mask", "draft" or "stable"; step is the step that set the token, 0 for
// tokens that were there before. A timeline has one run, and one more for each time that gaps were filled. Such a run
// begins with a step that only opens the gaps, so that the answer before it stays visible.

const OPENS = { start: 0, tokens: [], masked: new Set(), nfe: 0 };

export class Timeline {
  constructor() {
    this.runs = [];
    this.cached = null; // {count, cells} of the last call of `at`
  }

  begin(promptTokens = 0, initial = []) {
    // `initial`: the cells before the first step, for a text with gaps.
    const before = this.run?.scores ?? [];
    const scores = before.map((score, i) => (initial[i]?.filled ? undefined : score));
    const steps = this.runs.length ? [OPENS] : [];
    this.runs.push({ promptTokens, initial, steps, first: this.length, tokens: null, scores });
    this.cached = null;
  }

  get run() {
    return this.runs.at(-1);
  }

  get length() {
    return this.runs.reduce((sum, run) => sum + run.steps.length, 0);
  }

  get finished() {
    return this.runs.length > 0 && this.run.tokens !== null;
  }

  get forwards() {
    return this.run?.steps.at(-1)?.nfe ?? 0;
  }

  add({ start, tokens, masked, nfe }) {
    this.run.steps.push({ start, tokens, masked: new Set(masked), nfe });
  }

  end(tokens) {
    // The last block may have more tokens than the answer.
    this.run.tokens = tokens;
    this.cached = null;
  }

  score(index) {
    // {p, other, otherP} of an output token: its probability and the runner-up; undefined if unknown.
    return this.run?.scores[index];
  }

  at(count) {
    // The cells after `count` steps of all runs.
    let run = this.runs[0];
    for (const other of this.runs) if (other.first < count) run = other;
    if (!run) return [];
    return this.#cells(run, count);
  }

  #cells(run, count) {
    let from = run.first;
    let cells = run.initial.map((cell) => ({ ...cell }));
    if (this.cached && this.cached.run === run && this.cached.count <= count) {
      from = this.cached.count;
      cells = this.cached.cells;
    }
    for (let n = from; n < Math.min(count, run.first + run.steps.length); n++) {
      apply(cells, run, run.steps[n - run.first], n + 1);
    }
    this.cached = { run, count, cells: cells.map((cell) => ({ ...cell })) };
    if (run.tokens === null || count < run.first + run.steps.length) return cells;
    for (const cell of cells) cell.kind = "stable";
    return cells.slice(0, run.tokens);
  }
}

function apply(cells, run, { start, tokens, masked }, number) {
  for (let i = 0; i < Math.min(start - run.promptTokens, cells.length); i++) cells[i].kind = "stable";
  tokens.forEach((id, i) => {
    const at = start + i - run.promptTokens;
    if (at < 0) return; // the end of the prompt is in the first block
    const before = cells[at];
    const filled = before?.filled ?? false;
    if (masked.has(i)) cells[at] = { id: null, kind: "mask", step: 0, filled };
    else if (before && before.id === id) cells[at] = { ...before, kind: before.kind === "stable" ? "stable" : "draft" };
    else cells[at] = { id, kind: "draft", step: number, filled };
  });
  for (let i = 0; i < cells.length; i++) cells[i] ??= { id: null, kind: "mask", step: 0, filled: false };
}
