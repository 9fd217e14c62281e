// Shared code of the scripts of Node clients, like checks.py for Python clients.
import assert from 'node:assert/strict'
import { appendFileSync } from 'node:fs'

export const SERVER = process.env.UNMASK_CLIENT_SERVER
export const URL = `${SERVER}/v1`
export const KEY = process.env.UNMASK_CLIENT_KEY
export const MODEL = 'unmask-demo'

export const SUM = 'Solve: 12 + 30.'
export const SUM_ANSWER = '12 + 30 = 42.'
export const TALE = 'Tell a story about Anna, a fox and a river.'
export const RECORD = 'Anna, 34, lives in Rome. Write this as JSON.'
export const PERSON = { name: 'Anna', age: 34, city: 'Rome' }
export const COMPUTE = 'What is 812 + 77?' // for which the demo calls a calculator if it is offered one
export const COMPUTED = '889'
export const SCHEMA = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer' }, city: { type: 'string' } },
  required: ['name', 'age', 'city'],
  additionalProperties: false,
}

// Returns the result of the calculator that clients offer. Throws for anything but a sum of two.
export function calculated(expression) {
  const [, left, right] = expression.match(/^\s*(\d+)\s*\+\s*(\d+)\s*$/)
  return String(Number(left) + Number(right))
}

export const same = assert.deepStrictEqual

// Runs `work` immediately, and reports its outcome.
export async function check(kind, name, work) {
  const began = performance.now()
  let error = null
  try {
    await work()
  } catch (thrown) {
    error = `${thrown?.stack ?? thrown} ${thrown?.responseBody ?? ''}`
  }
  const told = { kind, name, error, seconds: (performance.now() - began) / 1000 }
  appendFileSync(process.env.UNMASK_CLIENT_REPORT, JSON.stringify(told) + '\n')
}
