// Runs Continue CLI non-interactively. It prints the last answer only, and always streams.
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { KEY, MODEL, URL, check, same } from './checks.mjs'
import { ANSWER, COMMAND, call, run, saying } from './agents.mjs'

const folder = join(homedir(), '.continue')
mkdirSync(folder, { recursive: true })
writeFileSync(join(folder, 'config.yaml'), `
name: Unmask
version: 1.0.0
schema: v1
models:
  - name: Demo
    provider: openai
    model: ${MODEL}
    apiBase: ${URL}
    apiKey: ${KEY}
    roles: [chat]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: 262144
      maxTokens: 4096
`)

const cn = async (prompt, ...more) => {
  const printed = await run('cn', ['-p', '--format', 'json', ...more, prompt], { CONTINUE_CLI_ENABLE_TELEMETRY: '0' })
  return printed.map((line) => line.response)
}

await check('basic', 'a turn', async () => {
  same(await cn(saying('Hello there.')), ['Hello there.'])
})

await check('streaming', 'usage at the end', async () => {
  await cn(saying('Hello again.'))
  const sessions = join(folder, 'sessions')
  const stored = readdirSync(sessions).map((name) => readFileSync(join(sessions, name), 'utf8'))
  const { usage } = JSON.parse(stored.find((text) => text.includes('Hello again.')))
  same([usage.promptTokens > 1000, usage.completionTokens > 0], [true, true])
})

await check('tools', 'a call and its result', async () => {
  same(await cn(saying(`Reading.${call('Bash', { command: COMMAND })}`), '--allow', 'Bash'), [ANSWER])
})
