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
export const SCHEMA = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer' }, city: { type: 'string' } },
  required: ['name', 'age', 'city'],
  additionalProperties: false,
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
