import { Agent } from '@mastra/core/agent'
import { createTool } from '@mastra/core/tools'
import { z } from 'zod'
import { COMPUTE, COMPUTED, KEY, MODEL, PERSON, RECORD, SUM, SUM_ANSWER, TALE, URL, calculated, check, same } from './checks.mjs'

process.env.MASTRA_TELEMETRY_DISABLED = '1'

const Person = z.object({ name: z.string(), age: z.number().int(), city: z.string() })

const model = { id: `unmask/${MODEL}`, url: URL, apiKey: KEY }

const agent = (more = {}) => new Agent({ id: 'demo', name: 'demo', instructions: '', model, maxRetries: 0, ...more })

// Returns an agent with a calculator, and the list of the expressions that it has calculated.
function calculating() {
  const called = []
  const calculator = createTool({
    id: 'calculator',
    description: 'Calculate the value of an arithmetic expression.',
    strict: true, // Zod's schemas begin with `$schema`, after which the demo model makes mistakes in calls that are not strict
    inputSchema: z.object({ expression: z.string() }),
    execute: async ({ expression }) => {
      called.push(expression)
      return calculated(expression)
    },
  })
  return [agent({ tools: { calculator } }), called]
}

async function text(stream) {
  const pieces = []
  for await (const piece of stream.textStream) pieces.push(piece)
  return pieces.join('')
}

await check('basic', 'generate', async () => {
  const answer = await agent().generate(SUM)
  same([answer.text, answer.finishReason], [SUM_ANSWER, 'stop'])
})

await check('basic', 'history', async () => {
  const said = (role, content) => ({ role, content })
  const history = [said('user', SUM), said('assistant', SUM_ANSWER), said('user', 'Solve: 7 * 8.')]
  same((await agent().generate(history)).text, '7 x 8 = 56.')
})

await check('basic', 'responses', async () => {
  same((await agent({ model: { ...model, api: 'responses' } }).generate(SUM)).text, SUM_ANSWER)
})

await check('streaming', 'stream', async () => {
  const whole = await agent().generate(TALE)
  const stream = await agent().stream(TALE)
  same(await text(stream), whole.text)
  same(await stream.finishReason, 'stop') // Mastra does not request usage in streams
})

await check('structured', 'structuredOutput', async () => {
  same((await agent().generate(RECORD, { structuredOutput: { schema: Person } })).object, PERSON)
})

await check('structured', 'structuredOutput, streamed', async () => {
  const stream = await agent().stream(RECORD, { structuredOutput: { schema: Person } })
  let last = null
  for await (const partial of stream.objectStream) last = partial
  same([last, await stream.object], [PERSON, PERSON])
})

await check('tools', 'there and back', async () => {
  const [calculator, called] = calculating()
  const answer = await calculator.generate(COMPUTE)
  same([called.length, answer.text.includes(COMPUTED)], [1, true])
})

await check('tools', 'there and back, streamed', async () => {
  const [calculator, called] = calculating()
  const answer = await text(await calculator.stream(COMPUTE))
  same([called.length, answer.includes(COMPUTED)], [1, true])
})
