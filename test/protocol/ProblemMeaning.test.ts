import { expect, test } from 'bun:test'
import { join } from 'node:path'
import { unentitled } from '../../src/paywall/Denial'
import * as Problem from '../../src/protocol/Problem'
import * as ProblemMeaning from '../../src/protocol/ProblemMeaning'

test('a meaning has the status and the title of the problem with its code', () => {
  const all = ProblemMeaning.all()
  expect(all.length).toBeGreaterThan(40)
  for (const { code, status, title, retryable = false } of all)
    expect(Problem.of(code, 'x')).toMatchObject({ code, status, title, retryable })
  const statuses = all.map(({ status }) => status)
  expect(statuses).toEqual(statuses.toSorted((a, b) => a - b))
})

test('each text is a full sentence that says what to do', () => {
  for (const { meaning, client, operator = 'Nothing.' } of ProblemMeaning.all())
    for (const text of [meaning, client, operator]) expect(text).toMatch(/^[A-Z`].*\.$/)
})

test('error: a code that no answer has has no meaning', () => {
  expect(ProblemMeaning.meaningOf('no-such-code')).toBeUndefined()
  expect(ProblemMeaning.meaningOf('constructor')).toBeUndefined()
})

/** Strings of the form of a reason that are none, and the first parts of composed ones. */
const others = new Set([
  ...['erc20_approval', 'invalid_exact_evm', 'invalid_exact_evm_payload_authorization'],
  ...['invalid_permit2', 'permit2_2612', 'eip2612', 'erc20_approval_', 'delivery_attempts_total'],
])
const form =
  /'((?:invalid|permit2|upto|unsupported|eip6492|eip2612|erc20_approval|settlement|delivery|idempotency)_\w+|\w+_not_allowed|amount_\w+)'/g

test('every x402 reason in the code has a meaning, and no other has', async () => {
  const page = await Bun.file(join(import.meta.dir, '../../docs/troubleshooting.md')).text()
  const [, section = ''] = page.split('## Reason codes')
  const [table = ''] = section.split('\n## ')
  const row = /^\| `(\w+)` \| ([A-Z`][^|]*\.) \| ([A-Z][^|]*\.) \|$/gm
  const reasons = [...table.matchAll(row)].map(([, reason = '']) => reason)
  const root = join(import.meta.dir, '../../src')
  const used = new Set<string>(Object.keys(unentitled))
  for await (const path of new Bun.Glob(
    '{protocol,settlement,paywall,facilitator,sponsor,stock}/**/*.ts',
  ).scan(root)) {
    const text = await Bun.file(join(root, path)).text()
    for (const [, code = ''] of text.matchAll(form)) if (!others.has(code)) used.add(code)
    // `${prefix}_from_mismatch` stands for the code of each extension.
    for (const [, end = ''] of text.matchAll(/`\$\{prefix\}_(\w+)`/g))
      for (const prefix of prefixesOf(path)) used.add(`${prefix}_${end}`)
    for (const [, end = ''] of text.matchAll(/`\$\{code\}_(\w+)`/g))
      for (const prefix of ['invalid_permit2', 'invalid_exact_evm']) used.add(`${prefix}_${end}`)
  }
  expect(reasons.toSorted()).toEqual([...used].toSorted())
})

function prefixesOf(path: string): string[] {
  return path === 'protocol/Sponsoring.ts'
    ? ['eip2612', 'erc20_approval']
    : ['invalid_exact_evm_payload_authorization']
}
