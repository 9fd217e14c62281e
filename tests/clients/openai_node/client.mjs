import OpenAI from 'openai'
import { zodResponseFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import { KEY, MODEL, PERSON, RECORD, SCHEMA, SUM, SUM_ANSWER, TALE, URL, check, same } from './checks.mjs'

const client = new OpenAI({ baseURL: URL, apiKey: KEY, maxRetries: 0 })
const Person = z.object({ name: z.string(), age: z.number().int(), city: z.string() })
const said = (content) => ({ model: MODEL, messages: [{ role: 'user', content }] })

await check('basic', 'chat', async () => {
  const answer = await client.chat.completions.create(said(SUM))
  same(answer.choices[0].message.content, SUM_ANSWER)
  same(answer.choices[0].finish_reason, 'stop')
})

await check('basic', 'its own history', async () => {
  const first = await client.chat.completions.create(said(SUM))
  const messages = [...said(SUM).messages, first.choices[0].message, ...said('Solve: 7 * 8.').messages]
  const answer = await client.chat.completions.create({ model: MODEL, messages })
  same(answer.choices[0].message.content, '7 x 8 = 56.')
})

await check('streaming', 'chunks', async () => {
  const whole = await client.chat.completions.create(said(TALE))
  const stream = await client.chat.completions.create({ ...said(TALE), stream: true, stream_options: { include_usage: true } })
  let text = '', usage = null
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? ''
    usage = chunk.usage ?? usage
  }
  same(text, whole.choices[0].message.content)
  same(usage.completion_tokens, whole.usage.completion_tokens)
})

await check('streaming', 'stream helper', async () => {
  const stream = client.chat.completions.stream(said(SUM))
  same(await stream.finalContent(), SUM_ANSWER)
})

await check('structured', 'parse', async () => {
  const answer = await client.chat.completions.parse({ ...said(RECORD), response_format: zodResponseFormat(Person, 'person') })
  same(answer.choices[0].message.parsed, PERSON)
})

await check('structured', 'json schema', async () => {
  const response_format = { type: 'json_schema', json_schema: { name: 'person', schema: SCHEMA, strict: true } }
  const answer = await client.chat.completions.create({ ...said(RECORD), response_format })
  same(JSON.parse(answer.choices[0].message.content), PERSON)
})

await check('basic', 'responses', async () => {
  const answer = await client.responses.create({ model: MODEL, input: SUM })
  same(answer.output_text, SUM_ANSWER)
})

await check('more', 'models', async () => {
  const found = []
  for await (const model of client.models.list()) found.push(model.id)
  same(found, [MODEL])
})

await check('more', 'errors', async () => {
  const refused = await client.chat.completions.create({ ...said(SUM), model: 'another' }).catch((error) => error)
  same([refused.status, refused.code], [404, 'model_not_found'])
})
