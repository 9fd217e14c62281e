// Runs Codex CLI non-interactively. It prints one event per line, and always streams.
import { mkdirSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { KEY, MODEL, URL, check, same } from './checks.mjs'
import { ANSWER, COMMAND, call, run, saying } from './agents.mjs'

const home = join(homedir(), '.codex')
mkdirSync(home, { recursive: true })
writeFileSync(join(home, 'config.toml'), `
model = "${MODEL}"
model_provider = "unmask"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.unmask]
name = "Unmask"
base_url = "${URL}"
wire_api = "responses"
env_key = "UNMASK_CLIENT_KEY"

[analytics]
enabled = false
`)

const codex = (prompt) => run('codex', ['exec', '--skip-git-repo-check', '--json', prompt], { UNMASK_CLIENT_KEY: KEY })
const items = (events, type) => events.filter((e) => e.type === 'item.completed' && e.item.type === type).map((e) => e.item)

await check('basic', 'a turn', async () => {
  const events = await codex(saying('Hello there.'))
  same(items(events, 'agent_message').map((item) => item.text), ['Hello there.'])
  same(events.filter((event) => event.type.endsWith('failed') || event.type === 'error'), [])
})

await check('streaming', 'usage at the end', async () => {
  const events = await codex(saying('Hello again.'))
  const { usage } = events.find((event) => event.type === 'turn.completed')
  same([usage.input_tokens > 1000, usage.output_tokens > 0], [true, true])
})

await check('tools', 'a call and its result', async () => {
  const events = await codex(saying(call('exec_command', { cmd: COMMAND })))
  const [command] = items(events, 'command_execution')
  same([command.exit_code, command.aggregated_output], [0, `${saying(ANSWER)}\n`])
  same(items(events, 'agent_message').map((item) => item.text), [ANSWER])
})
