// Prompts that the model answers well; the shipped demo knows few things, and says so of all others.

const DEMO = [
  "What is 120 + 300?",
  "Tell me a story.",
  "Tell a story about Clara, a fox and a castle.",
  "Count from 7 to 23.",
  "Spell giraffe.",
  "What is 36 x 24?",
  "Solve this sudoku:\n1__4\n__12\n2_4_\n_3_1",
  "Add 48275 and 9387 step by step.",
  "Write as JSON: Emma works as a pilot in Oslo and is 34 years old.",
  "Sort 14, 3, 88, 21, 7.",
  "What can you do?",
];
const ANY = [
  "Explain in two sentences what a diffusion language model does.",
  "Write a haiku about masks.",
  "Write a Python function that checks whether a number is prime.",
];

export function examplesOf(model) {
  return model === "unmask-demo" ? DEMO : ANY;
}
