// Runs opencode non-interactively. It prints one event per line, and always streams. The package `opencode-ai` only selects
// the package with the program of a platform.
import { createRequire } from 'node:module'
import { mkdirSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { KEY, MODEL, URL, check, same } from './checks.mjs'
import { ANSWER, COMMAND, call, run, saying } from './agents.mjs'

const program = createRequire(import.meta.url).resolve('opencode-linux-x64/bin/opencode')
const folder = join(homedir(), '.config', 'opencode')
mkdirSync(folder, { recursive: true })
writeFileSync(join(folder, 'opencode.json'), JSON.stringify({
  $schema: 'https://opencode.ai/config.json',
  model: `unmask/${MODEL}`,
  small_model: `unmask/${MODEL}`,
  autoupdate: false,
  share: 'disabled',
  provider: {
    unmask: {
      npm: '@ai-sdk/openai-compatible',
      name: 'Unmask',
      options: { baseURL: URL, apiKey: '{env:UNMASK_CLIENT_KEY}' },
      models: { [MODEL]: { name: 'Demo', limit: { context: 262144, output: 4096 } } },
    },
  },
}))

const variables = {
  UNMASK_CLIENT_KEY: KEY,
  OPENCODE_DISABLE_AUTOUPDATE: 'true',
  OPENCODE_DISABLE_MODELS_FETCH: 'true',
  OPENCODE_DISABLE_LSP_DOWNLOAD: 'true',
  npm_config_offline: 'true', // otherwise it installs packages for plugins, also without plugins
}

// opencode puts a prompt with spaces in quotes, and escapes the quotes in it.
const opencode = (prompt) => run(program, ['run', '--format', 'json', prompt.replaceAll(' ', '\\u0020')], variables)
const parts = (events, type) => events.filter((event) => event.type === type).map((event) => event.part)

await check('basic', 'a turn', async () => {
  const events = await opencode(saying('Hello there.'))
  same(parts(events, 'text').map((part) => part.text), ['Hello there.'])
  same(events.filter((event) => event.type === 'error'), [])
})

await check('streaming', 'usage at the end', async () => {
  const [finish] = parts(await opencode(saying('Hello again.')), 'step_finish')
  same([finish.reason, finish.tokens.input > 1000, finish.tokens.output > 0], ['stop', true, true])
})

await check('tools', 'a call and its result', async () => {
  const events = await opencode(saying(`Reading.${call('bash', { command: COMMAND, description: 'Read it' })}`))
  const [used] = parts(events, 'tool_use')
  same([used.tool, used.state.status, used.state.output], ['bash', 'completed', `${saying(ANSWER)}\n`])
  same(parts(events, 'text').map((part) => part.text), ['Reading.', ANSWER])
})
