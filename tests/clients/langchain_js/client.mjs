import { HumanMessage } from '@langchain/core/messages'
import { ChatPromptTemplate } from '@langchain/core/prompts'
import { ChatOpenAI } from '@langchain/openai'
import { createAgent, providerStrategy, tool } from 'langchain'
import { z } from 'zod'
import { COMPUTE, COMPUTED, KEY, MODEL, PERSON, RECORD, SCHEMA, SUM, SUM_ANSWER, TALE, URL, calculated, check, same } from './checks.mjs'

const chat = (more) => new ChatOpenAI({ model: MODEL, apiKey: KEY, configuration: { baseURL: URL }, maxRetries: 0, ...more })
// Zod's schemas begin with `$schema`, after which the demo model makes mistakes in tool calls that are not strict.
const model = chat({ supportsStrictToolCalling: true })
const Person = z.object({ name: z.string(), age: z.number().int(), city: z.string() })
const Calculator = z.object({ expression: z.string() })
const calculator = tool(({ expression }) => calculated(expression), {
  name: 'calculator', description: 'Calculate the value of an arithmetic expression.', schema: Calculator,
})

await check('basic', 'invoke', async () => {
  const answer = await model.invoke(SUM)
  same(answer.content, SUM_ANSWER)
  same(answer.usage_metadata.output_tokens > 5, true)
})

await check('basic', 'chain and history', async () => {
  const chain = ChatPromptTemplate.fromMessages([['human', 'Solve: {a} * {b}.']]).pipe(model)
  same((await chain.invoke({ a: 7, b: 8 })).content, '7 x 8 = 56.')
  const history = [new HumanMessage(SUM), await model.invoke(SUM), new HumanMessage('Solve: 7 * 8.')]
  same((await model.invoke(history)).content, '7 x 8 = 56.')
})

await check('basic', 'batch', async () => {
  const numbers = [0, 1, 2, 3]
  const answers = await model.batch(numbers.map((i) => `Solve: ${i} + 30.`))
  same(answers.map((answer) => answer.content), numbers.map((i) => `${i} + 30 = ${i + 30}.`))
})

await check('basic', 'responses', async () => {
  same((await chat({ useResponsesApi: true }).invoke(SUM)).text, SUM_ANSWER)
})

await check('streaming', 'stream', async () => {
  const whole = await model.invoke(TALE)
  const pieces = []
  for await (const piece of await model.stream(TALE)) pieces.push(piece)
  same(pieces.map((piece) => piece.content).join(''), whole.content)
  const usage = pieces.map((piece) => piece.usage_metadata).filter(Boolean)
  same(usage.map((counts) => counts.output_tokens), [whole.usage_metadata.output_tokens])
})

await check('structured', 'jsonSchema', async () => {
  for (const schema of [Person, { title: 'person', ...SCHEMA }]) {
    same(await model.withStructuredOutput(schema, { method: 'jsonSchema', name: 'person', strict: true }).invoke(RECORD), PERSON)
  }
})

await check('structured', 'jsonMode', async () => {
  same(await model.withStructuredOutput(Person, { method: 'jsonMode' }).invoke(RECORD), PERSON)
})

await check('structured', 'functionCalling', async () => {
  const found = await model.withStructuredOutput(Calculator, { method: 'functionCalling', name: 'calculator' }).invoke(COMPUTE)
  same(calculated(found.expression), COMPUTED)
})

await check('structured', 'responseFormat of an agent', async () => {
  const agent = createAgent({ model, tools: [], responseFormat: providerStrategy(Person) })
  same((await agent.invoke({ messages: [new HumanMessage(RECORD)] })).structuredResponse, PERSON)
})

await check('tools', 'bindTools', async () => {
  const [call] = (await model.bindTools([calculator]).invoke(COMPUTE)).tool_calls
  same((await calculator.invoke(call)).content, COMPUTED)
})

await check('tools', 'bindTools, streamed', async () => {
  let message = null
  for await (const piece of await model.bindTools([calculator], { tool_choice: 'required' }).stream(COMPUTE)) {
    message = message === null ? piece : message.concat(piece)
  }
  same(message.tool_calls.map((call) => call.name), ['calculator'])
  same((await calculator.invoke(message.tool_calls[0])).content, COMPUTED)
})

await check('tools', 'createAgent', async () => {
  const agent = createAgent({ model, tools: [calculator] })
  const { messages } = await agent.invoke({ messages: [new HumanMessage(COMPUTE)] })
  same(messages.map((message) => message.type), ['human', 'ai', 'tool', 'ai'])
  same([messages[2].content, messages[3].text.includes(COMPUTED)], [COMPUTED, true])
})
