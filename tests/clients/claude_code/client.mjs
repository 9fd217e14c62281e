// Runs Claude Code non-interactively. It prints one event per line.
import { createRequire } from 'node:module'
import { KEY, MODEL, SERVER, check, same } from './checks.mjs'
import { ANSWER, COMMAND, call, run, saying } from './agents.mjs'

// Install scripts are disabled, so the package's script does not link the program.
const program = createRequire(import.meta.url).resolve(
  `@anthropic-ai/claude-code-${process.platform}-${process.arch}/claude`,
)
const variables = {
  ANTHROPIC_BASE_URL: SERVER,
  ANTHROPIC_AUTH_TOKEN: KEY,
  ANTHROPIC_MODEL: MODEL,
  ANTHROPIC_DEFAULT_HAIKU_MODEL: MODEL,
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
}
const args = ['--output-format', 'stream-json', '--verbose', '--include-partial-messages', '--allowedTools', 'Bash(cat:*)']
const claude = (prompt) => run(program, ['-p', prompt, ...args], variables, true)

const blocks = (events, type) =>
  events.filter((e) => e.type === 'assistant').flatMap((e) => e.message.content).filter((block) => block.type === type)
const texts = (events) => blocks(events, 'text').map((block) => block.text)

await check('basic', 'a turn', async () => {
  const events = await claude(saying('Hello there.', true))
  same(texts(events), ['Hello there.'])
  const { is_error, result } = events.find((event) => event.type === 'result')
  same([is_error, result], [false, 'Hello there.'])
})

await check('streaming', 'deltas are the message', async () => {
  const events = await claude(saying('A text in some pieces.', true))
  const deltas = events.filter((e) => e.type === 'stream_event' && e.event.type === 'content_block_delta').map((e) => e.event.delta)
  same(deltas.filter((delta) => delta.type === 'text_delta').map((delta) => delta.text).join(''), 'A text in some pieces.')
  same(blocks(events, 'thinking').map((block) => block.thinking), ['I think.'])
})

await check('tools', 'a call and its result', async () => {
  const events = await claude(saying(`Reading.${call('Bash', { command: COMMAND, description: 'Read it' })}`, true))
  same(blocks(events, 'tool_use').map((block) => [block.name, block.input.command]), [['Bash', COMMAND]])
  const [result] = events.filter((e) => e.type === 'user').flatMap((e) => e.message.content).filter((b) => b.type === 'tool_result')
  same([result.is_error, result.content], [false, saying(ANSWER, true)])
  same(texts(events), ['Reading.', ANSWER])
})
