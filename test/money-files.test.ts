import { expect, test } from 'bun:test'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { onBoth, onBothByAll, onOne } from './harness/moneyfiles'

/** No test of money is forgotten by `bun run test:postgres`. */

const suffix = '.test.ts'
const names = readdirSync(import.meta.dir)
  .filter((name) => name.endsWith(suffix))
  .map((name) => name.slice(0, -suffix.length))
const known = [...onBoth, ...onBothByAll, ...onOne.flatMap(({ files }) => files)]

/** Functions of the harness that open a ledger. */
const openers = [
  ...['startShop', 'startStockShop', 'startModels', 'startTarget', 'startFixture', 'ownSettlement'],
  ...[
    'ownJobs',
    'ownReorg',
    'scripted',
    'slowLedger',
    'startSponsoring',
    'testWorld',
    'startWorld',
  ],
  ...['createStockProgram', 'startLatePaywall', 'startAgent', 'startSender', 'operatorOf'],
  ...['adminPages', 'insertPayment', 'countSql', 'farm', 'createTestLedger'],
]
const opens = new RegExp(`\\b(${openers.join('|')})\\b`)

/** Whether a file imports such a function, the one of harness/serving.ts, or the database itself. */
function opensLedger(text: string): boolean {
  const imports = text.matchAll(/^import (?!type )([^;]*?) from '([^']+)'/gms)
  return [...imports].some(
    ([, what = '', from = '']) =>
      from === './harness/serving' ||
      from.startsWith('../db/') ||
      (from.startsWith('./harness/') && opens.test(what)),
  )
}

test('behavior: every test file that opens a ledger says on which ones it runs', () => {
  const money = names.filter((name) => {
    if (name.startsWith('postgres-')) return false
    return opensLedger(readFileSync(join(import.meta.dir, name + suffix), 'utf8'))
  })
  expect(money.length).toBeGreaterThan(100)
  expect(money.filter((name) => !known.includes(name))).toEqual([])
})

test('behavior: each file is in one list, and exists', () => {
  expect(known.filter((name) => !names.includes(name))).toEqual([])
  expect(known.filter((name, at) => known.indexOf(name) !== at)).toEqual([])
})
