// Shared code of the scripts of agents. The server answers with the text that the last message contains, so the scripts
// check an agent's own prompt, tools and loop.
import { spawn } from 'node:child_process'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

const THOUGHT = 'I think.'
const FILE = 'answer.txt'
export const ANSWER = 'The answer is 42.'
export const COMMAND = `cat ${FILE}`

// Returns the prompt to which the server answers with `text`. `thinks`: whether the agent requests reasoning first.
export const saying = (text, thinks = false) => `SAY:${JSON.stringify(thinks ? `${THOUGHT}</think>${text}` : text)}`

// Returns the text of a tool call in the format of the model.
export const call = (name, args) => `<tool_call>${JSON.stringify({ name, arguments: args })}</tool_call>`

// Runs an agent in a folder with a file. When a tool has read the file, its content makes the server send the answer.
// Returns the events that the agent prints, one JSON object per line.
export function run(program, args, variables, thinks = false) {
  const folder = mkdtempSync(join(process.cwd(), 'project-'))
  writeFileSync(join(folder, FILE), `${saying(ANSWER, thinks)}\n`)
  const child = spawn(program, args, {
    cwd: folder,
    env: { ...process.env, PWD: folder, ...variables }, // as in a shell: some agents prefer PWD to the current directory
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  return new Promise((resolve, reject) => {
    let text = ''
    child.stdout.setEncoding('utf8').on('data', (piece) => { text += piece })
    child.on('error', reject)
    child.on('close', (code) => {
      const events = text.split('\n').filter((line) => line.startsWith('{')).map((line) => JSON.parse(line))
      if (code === 0) resolve(events)
      else reject(new Error(`${program} exited with ${code}:\n${text.slice(-4000)}`))
    })
  })
}
