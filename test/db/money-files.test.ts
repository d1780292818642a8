import { expect, test } from 'bun:test'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Glob } from 'bun'
import { onBoth, onBothByAll, onOne, paths } from '../harness/money-files'

/** No test of money is forgotten by `bun run test:postgres`. */

const known = [...onBoth, ...onBothByAll, ...onOne.flatMap(({ files }) => files)]

/** Functions of the harness that open a ledger. */
const openers = [
  ...['startShop', 'startStockShop', 'startModels', 'startTarget', 'startFixture', 'ownSettlement'],
  ...['ownChannels', 'startChannelShop', 'startChannelTarget'],
  ...[
    'ownJobs',
    'ownReorg',
    'ownRefunds',
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
      from === '../harness/serving' ||
      from.startsWith('../../db/') ||
      (from.startsWith('../harness/') && opens.test(what)),
  )
}

test('every test file that opens a ledger says on which ones it runs', () => {
  const money: string[] = []
  for (const [name, path] of paths)
    if (!name.startsWith('postgres-') && opensLedger(readFileSync(path, 'utf8'))) money.push(name)
  expect(money.length).toBeGreaterThan(100)
  expect(money.filter((name) => !known.includes(name))).toEqual([])
})

test('each file is in one list, and exists under a name of its own', () => {
  const root = join(import.meta.dir, '..')
  expect([...new Glob('**/*.test.ts').scanSync(root)]).toHaveLength(paths.size)
  expect(known.filter((name) => !paths.has(name))).toEqual([])
  expect(known.filter((name, at) => known.indexOf(name) !== at)).toEqual([])
})
