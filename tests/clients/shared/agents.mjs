// What the scripts of agents share. The server answers with what the last message tells it to say, so an agent's own
// prompt, tools and loop are what is checked.
import { spawn } from 'node:child_process'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

const THOUGHT = 'I think.'
const FILE = 'answer.txt'
export const ANSWER = 'The answer is 42.'
export const COMMAND = `cat ${FILE}`

// The prompt to which the server answers with `text`. `thinks`: the agent asks for reasoning first.
export const saying = (text, thinks = false) => `SAY:${JSON.stringify(thinks ? `${THOUGHT}</think>${text}` : text)}`

// The text of a call of a tool, as models write it.
export const call = (name, args) => `<tool_call>${JSON.stringify({ name, arguments: args })}</tool_call>`

// Runs an agent in a folder whose file makes the server give the answer once a tool has read it. Returns the events that
// it prints, a JSON object a line.
export function run(program, args, variables, thinks = false) {
  const folder = mkdtempSync(join(process.cwd(), 'project-'))
  writeFileSync(join(folder, FILE), `${saying(ANSWER, thinks)}\n`)
  const child = spawn(program, args, {
    cwd: folder,
    env: { ...process.env, ...variables },
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
