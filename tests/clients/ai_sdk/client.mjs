import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import * as ai from 'ai'
import { z } from 'zod'
import { KEY, MODEL, PERSON, RECORD, SUM, SUM_ANSWER, TALE, URL, check, same } from './checks.mjs'

const provider = createOpenAICompatible({
  name: 'unmask', baseURL: URL, apiKey: KEY, includeUsage: true, supportsStructuredOutputs: true,
})
const model = provider(MODEL)
const schema = z.object({ name: z.string(), age: z.number().int(), city: z.string() })
const asked = (prompt) => ({ model, prompt, maxRetries: 0 })

await check('basic', 'generateText', async () => {
  const answer = await ai.generateText(asked(SUM))
  same(answer.text, SUM_ANSWER)
  same(answer.finishReason, 'stop')
})

await check('streaming', 'streamText', async () => {
  const whole = await ai.generateText(asked(TALE))
  const stream = ai.streamText(asked(TALE))
  const pieces = []
  for await (const piece of stream.textStream) pieces.push(piece)
  same(pieces.join(''), whole.text)
  same((await stream.usage).outputTokens, whole.usage.outputTokens)
})

await check('structured', 'Output.object', async () => {
  const answer = await ai.generateText({ ...asked(RECORD), output: ai.Output.object({ schema }) })
  same(answer.output, PERSON)
})

await check('structured', 'Output.object, streamed', async () => {
  const stream = ai.streamText({ ...asked(RECORD), output: ai.Output.object({ schema }) })
  let last = null
  for await (const partial of stream.partialOutputStream) last = partial
  same(last, PERSON)
})

await check('structured', 'generateObject', async () => {
  if (ai.generateObject === undefined) return // newer versions have only Output
  same((await ai.generateObject({ ...asked(RECORD), schema })).object, PERSON)
})

await check('tools', 'required', async () => {
  const add = ai.tool({
    inputSchema: z.object({ a: z.number().int(), b: z.number().int() }),
    execute: async ({ a, b }) => a + b,
  })
  const answer = await ai.generateText({ ...asked(SUM), tools: { add }, toolChoice: 'required' })
  same([answer.toolCalls.length > 0, answer.toolResults.length], [true, answer.toolCalls.length])
  const stream = ai.streamText({ ...asked(SUM), tools: { add }, toolChoice: 'required' })
  same((await stream.toolCalls).map((call) => call.input), answer.toolCalls.map((call) => call.input))
})
