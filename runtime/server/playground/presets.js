// Named combinations of settings, and example prompts. Those of the demo model are ones that it answers correctly.

export const PRESETS = [
  { key: "default", name: "Server default", decoding: {} },
  { key: "fast", name: "Fast: low confidence is enough", decoding: { mode: "speed" } },
  { key: "careful", name: "Careful: only near-certain tokens", decoding: { algorithm: "threshold", accept_threshold: 0.9999 } },
  { key: "single", name: "One token per step", decoding: { algorithm: "sequential" } },
];
export const COMPARED = ["single", "default"]; // the first takes one step per token

const DEMO = {
  watch: [
    { prompt: "Tell me a story." },
    { prompt: "Tell a story about Clara and a fox." },
    { prompt: "Tell a story about Ben, an owl and a lighthouse.", preset: "careful" },
    { prompt: "Count from 7 to 23.", preset: "single" },
    { prompt: "Write as a table: Emma, 34, Oslo; Bob, 25, Paris; Ann, 41, Rome", preset: "single" },
    { prompt: "What is 917 in words?", preset: "single" },
  ],
  quick: [
    { prompt: "What is 36 x 24?" },
    { prompt: "Spell giraffe." },
    { prompt: "Solve this sudoku:\n1__4\n__12\n2_4_\n_3_1" },
    { prompt: "Add 48275 and 9387 step by step." },
    { prompt: "Write as JSON: Emma works as a pilot in Oslo and is 34 years old." },
    { prompt: "Sort 14, 3, 88, 21, 7." },
    { prompt: "What can you do?" },
  ],
  chat: [{ prompt: "What is 12 + 30?" }, { prompt: "And times two?" }, { prompt: "Tell me a story." }],
  structured: [{ prompt: "Emma is 34 years old and lives in Oslo. Write this as JSON." }],
  tools: [{ prompt: "What is 36 x 24?" }],
  infill: [
    {
      prompt: "Tell a story about Clara, a fox and a castle.",
      text: "Clara lived near the castle.\nOne evening<mask:13>.\n<mask:9>.\nClara took the<mask:5> and thanked the fox.\nSo the two<mask:2>.\nFrom then on Clara and the fox were friends.",
    },
    { prompt: "Spell giraffe.", text: "g-i-<mask:5>-f-e." },
  ],
};
const ANY = {
  watch: [
    { prompt: "Explain in two sentences what a diffusion language model does." },
    { prompt: "Write a short story about a fox and a castle." },
    { prompt: "Write a Python function that checks whether a number is prime." },
  ],
  quick: [{ prompt: "What is the capital of France?" }, { prompt: "Write a haiku about masks." }],
  chat: [{ prompt: "What is a masked token?" }, { prompt: "Give an example." }],
  structured: DEMO.structured,
  tools: DEMO.tools,
  infill: [{ prompt: "", text: "The fox lived near the <mask:2>. One evening it met <mask:4>." }],
};

export function examplesOf(model) {
  return model === "unmask-demo" ? DEMO : ANY;
}

export const SCHEMA = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" }, city: { type: "string" } },
  required: ["name", "age", "city"],
  additionalProperties: false,
};

export const TOOLS = [
  {
    type: "function",
    function: {
      name: "calculator",
      description: "Calculate the value of an arithmetic expression.",
      parameters: {
        type: "object",
        properties: { expression: { type: "string", description: "The expression to evaluate" } },
        required: ["expression"],
      },
    },
  },
];
