import { expect, test } from 'bun:test'
import * as Problem from '../../src/protocol/Problem'
import * as ProblemMeaning from '../../src/protocol/ProblemMeaning'

test('behavior: a meaning has the status and the title of the problem with its code', () => {
  const all = ProblemMeaning.all()
  expect(all.length).toBeGreaterThan(40)
  for (const { code, status, title, retryable = false } of all)
    expect(Problem.of(code, 'x')).toMatchObject({ code, status, title, retryable })
  const statuses = all.map(({ status }) => status)
  expect(statuses).toEqual(statuses.toSorted((a, b) => a - b))
})

test('behavior: each text is a full sentence that says what to do', () => {
  for (const { meaning, client, operator = 'Nothing.' } of ProblemMeaning.all())
    for (const text of [meaning, client, operator]) expect(text).toMatch(/^[A-Z`].*\.$/)
})

test('error: a code that no answer has has no meaning', () => {
  expect(ProblemMeaning.meaningOf('no-such-code')).toBeUndefined()
  expect(ProblemMeaning.meaningOf('constructor')).toBeUndefined()
})
