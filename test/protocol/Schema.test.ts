import { describe, expect, test } from 'bun:test'
import { Type } from '@sinclair/typebox'
import * as Schema from '../../src/protocol/Schema'

const query = Type.Object({
  size: Type.String({ pattern: '^[1-9]$', fault: 'must be a digit' }),
  color: Type.Optional(Type.String({ description: 'Any color.' })),
})
const read = (text: string, options?: Schema.QueryOptions<typeof query>) =>
  Schema.readQuery(query, new URLSearchParams(text), options)

describe('readQuery', () => {
  test('readQuery returns the parameters that fit, without absent ones', () => {
    expect(read('size=3')).toEqual({ values: { size: '3' }, wrong: [] })
    expect(read('size=3&color=')).toEqual({ values: { size: '3', color: '' }, wrong: [] })
  })

  test('error: readQuery names unknown parameters first, then faults in the order of the schema', () => {
    const unknown = 'is unknown'
    const checks = { color: () => 'must be a color' }
    expect(read('color=x&b=1&size=10&a=1&color=y', { unknown, checks }).wrong).toEqual([
      { name: 'color', reason: 'is given more than once' },
      { name: 'b', reason: 'is unknown' },
      { name: 'a', reason: 'is unknown' },
      { name: 'size', reason: 'must be a digit' },
      { name: 'color', reason: 'must be a color' },
    ])
    expect(read('').wrong).toEqual([{ name: 'size', reason: 'is required' }])
  })

  test('without a word for unknown parameters they are ignored, and the first of several counts', () => {
    expect(read('x=1&size=1&size=2')).toEqual({ values: { size: '1' }, wrong: [] })
  })

  test('error: a check of ours is asked only for what fits the schema', () => {
    const asked: string[] = []
    const size = (text: string) => void asked.push(text)
    read('size=10', { checks: { size } })
    read('size=1', { checks: { size } })
    expect(asked).toEqual(['1'])
  })
})

test('error: a member that an object inherits is not one of a schema', () => {
  const body = Type.Object({ amount: Type.Integer() })
  expect(() => Schema.assertNoOthers(body, { amount: 1 })).not.toThrow()
  expect(() => Schema.assertNoOthers(body, { toString: 1 })).toThrow('"toString" is not a member')
})

test('the JSON of a schema has no words of ours', () => {
  expect(Schema.toJson(query)).toEqual({
    type: 'object',
    required: ['size'],
    properties: {
      size: { type: 'string', pattern: '^[1-9]$' },
      color: { type: 'string', description: 'Any color.' },
    },
  })
})
