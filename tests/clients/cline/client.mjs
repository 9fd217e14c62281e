// Runs Cline CLI non-interactively. It prints one event per line, and always streams. The package `cline` only selects the
// package with the program of a platform.
import { execFileSync } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { KEY, MODEL, URL, check, same } from './checks.mjs'
import { ANSWER, COMMAND, call, run, saying } from './agents.mjs'

const folder = join(homedir(), '.cline', 'data', 'settings')
mkdirSync(folder, { recursive: true })
writeFileSync(join(folder, 'global-settings.json'), JSON.stringify({ telemetryOptOut: true, autoUpdateEnabled: false }))
const provider = ['--provider', 'openai-compatible', '--baseurl', URL, '--apikey', KEY, '--modelid', MODEL]
execFileSync('cline', ['auth', ...provider])

// The default mode starts a daemon for all sessions, which outlives the command.
const variables = { CLINE_SESSION_BACKEND_MODE: 'local' }
const cline = async (prompt) => {
  const events = await run('cline', ['--json', prompt], variables)
  const result = events.find((event) => event.type === 'run_result')
  return { result, events: events.filter((event) => event.type === 'agent_event').map((event) => event.event) }
}

await check('basic', 'a turn', async () => {
  const { result } = await cline(saying('Hello there.'))
  same([result.finishReason, result.text, result.usage.inputTokens > 1000], ['completed', 'Hello there.', true])
})

await check('streaming', 'deltas are the message', async () => {
  const { events } = await cline(saying('A text in some pieces.'))
  const deltas = events.filter((event) => event.type === 'content_start' && event.contentType === 'text')
  same(deltas.map((event) => event.text).join(''), 'A text in some pieces.')
})

await check('tools', 'a call and its result', async () => {
  const { result, events } = await cline(saying(`Reading.${call('run_commands', { commands: [COMMAND] })}`))
  const [used] = events.filter((event) => event.type === 'content_end' && event.contentType === 'tool')
  same([used.toolName, used.output], ['run_commands', [{ query: COMMAND, result: `${saying(ANSWER)}\n`, success: true }]])
  same(result.text, ANSWER)
})
