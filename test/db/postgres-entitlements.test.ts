import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { Address } from 'viem'
import * as Entitlement from '../../db/Entitlement'
import type { PaymentRow } from '../../db/schema'
import { createLedger, databaseOf } from '../../db/sqlite/ledger'
import { openInMemory } from '../../db/sqlite/open'
import { dayMs } from '../../src/protocol/Time'
import { startGateway, type TestGateway } from '../harness/gateway-pair'
import { gatewayDatabase, hasPostgres } from '../harness/postgres'
import { newAddress } from '../harness/products'
import { type Actions, actionsOf, inclusionOf, paidBy } from '../harness/settling-actions'
import { ledgers, type SettlingLedger } from '../harness/settling-ledgers'
import {
  at,
  freshNetwork,
  hashOf,
  next,
  paymentRow,
  transactionRow,
} from '../harness/settling-rows'
import { until } from '../harness/world'

/** Entitlements and their uses are the same on both databases, and exact at two gateways. */

const attemptsMax = 6
const periodMs = 60_000
/** Of a confirmed payment: the receipt comes a millisecond after it. */
const untilMs = at + 1 + periodMs
let serial = 0
const useId = () => `use_${++serial}`

for (const { name, open, isThere } of ledgers)
  describe.skipIf(!isThere)(name, () => {
    let own: SettlingLedger
    let does: Actions
    beforeAll(async () => {
      own = await open()
      does = actionsOf(own)
    })
    afterAll(() => own.close())

    const pass = (
      changes: Partial<Entitlement.NewEntitlement> = {},
    ): Entitlement.NewEntitlement => {
      const opened = { merchant: 'weather', route: '/forecast', fingerprint: undefined }
      return { kind: 'pass', ...opened, usesMax: 3, periodMs, ...changes }
    }
    const again = (changes: Partial<Entitlement.NewEntitlement> = {}) =>
      pass({ kind: 'again', fingerprint: 'f'.repeat(64), ...changes })

    /** Launches a payment with an entitlement, and confirms it. */
    async function buy(
      entitles: Entitlement.NewEntitlement,
      changes: Partial<PaymentRow> = {},
      isConfirmed = true,
    ) {
      const { settling } = own.ledger
      const transaction = transactionRow(freshNetwork())
      const row = paymentRow(transaction, { payer: newAddress(), ...changes })
      const fresh = [{ row, rows: { entitles } }]
      expect((await settling.launch({ transaction, fresh, again: [] })).kind).toBe('stored')
      const confirm = () => settling.record(inclusionOf({ transaction }), paidBy([row.id]))
      if (isConfirmed) await confirm()
      return { transaction, row, confirm, id: Entitlement.idOf(entitles.kind, row.id) }
    }

    const find = (wallet: Address, changes = {}) =>
      own.other.entitlements.find({
        ...{ merchant: 'weather', route: '/forecast', wallet, fingerprint: 'f'.repeat(64) },
        ...{ now: at + 2, ...changes },
      })
    const use = (id: string, use = useId(), now = at + 2, of = own.ledger) =>
      of.entitlements.use({ id: use, entitlement: { id }, attemptsMax, now })
    const counts = async (id: string) => {
      const [row] = await own.run(
        `SELECT uses, attempts, uses_max AS max FROM entitlements WHERE id = '${id}'`,
      )
      return row && [Number(row.uses), Number(row.attempts), Number(row.max)]
    }
    const both = <T>(
      count: number,
      run: (ledger: typeof own.ledger, index: number) => Promise<T>,
    ) =>
      Promise.all(
        Array.from({ length: count }, (_, index) => run(index % 2 ? own.other : own.ledger, index)),
      )
    const times = (all: readonly unknown[], value: unknown) =>
      all.filter((each) => each === value).length

    test('an entitlement is found while its payment is confirmed and its time is not over', async () => {
      const { row, confirm, id } = await buy(again(), {}, false)
      const lower = row.payer.toLowerCase() as Address
      expect(await find(row.payer)).toEqual([])
      expect(await own.ledger.entitlements.findByPayment(row.id)).toMatchObject({
        until: undefined,
      })
      await confirm()
      const { network, payer: wallet, id: paymentId } = row
      const facts = { merchant: 'weather', route: '/forecast', wallet, network }
      const counters = { uses: 0, usesMax: 3, attempts: 0 }
      const payment = await does.payment(paymentId)
      const found = { id, kind: 'again', ...facts, ...counters, until: untilMs, payment } as const
      expect(await find(lower)).toEqual([found])
      expect(await own.ledger.entitlements.findByPayment(paymentId)).toEqual(found)
      expect(await own.ledger.entitlements.findByPayment('pay_none')).toBeUndefined()
      for (const other of [
        { fingerprint: 'e' },
        { route: '/' },
        { merchant: 'x' },
        { now: untilMs },
      ])
        expect([other, await find(wallet, other)]).toEqual([other, []])
      expect(await find(newAddress())).toEqual([])
    })

    test('an external settlement entitles as well', async () => {
      const external = paymentRow(
        { network: freshNetwork(), hash: hashOf(next()) },
        { state: 'confirmed', logIndex: 3, blockNumber: 9n, confirmedAt: at, payer: newAddress() },
      )
      const rows = { entitles: pass() }
      expect(await own.ledger.settling.storeExternal({ row: external, rows })).toBe('stored')
      expect(await find(external.payer)).toMatchObject([{ kind: 'pass', until: at + periodMs }])
    })

    test('the best ones come first: an answer, then passes by their end, then a trial', async () => {
      const payer = newAddress()
      const later = await buy(pass({ periodMs: 2 * periodMs }), { payer })
      const first = await buy(pass(), { payer })
      const answer = await buy(again({ periodMs: 3 * periodMs }), { payer })
      const trial = { ...pass(), wallet: payer, network: 'eip155:1', usesMax: 1 } as const
      const tried = { id: useId(), entitlement: { trial }, attemptsMax, now: at }
      expect(await own.ledger.entitlements.use(tried)).toBe('used')
      const found = await find(payer)
      expect(found.map(({ id }) => id)).toEqual([
        ...[answer.id, first.id, later.id],
        Entitlement.trialId(trial),
      ])
      // Spent ones are there, too.
      expect(found.at(-1)).toMatchObject({
        uses: 1,
        usesMax: 1,
        until: undefined,
        network: 'eip155:1',
      })
    })

    test('attack: uses at two gateways at once are no more than there are, and each id is used once', async () => {
      const { id } = await buy(pass())
      const ends = await both(12, (ledger) => use(id, useId(), at + 2, ledger))
      expect([times(ends, 'used'), times(ends, 'spent')]).toEqual([3, 9])
      expect(await counts(id)).toEqual([3, 3, 3])
      const other = await buy(pass({ usesMax: 9 }))
      const same = useId()
      const again = await both(6, (ledger) => use(other.id, same, at + 2, ledger))
      expect([times(again, 'used'), times(again, 'id-used')]).toEqual([1, 5])
      // Not even for another entitlement.
      expect(await use((await buy(pass())).id, same)).toBe('id-used')
    })

    test('attack: uses of many passes that fail at two gateways do not lock each other out', async () => {
      const passes = await Promise.all(
        Array.from({ length: 12 }, () => buy(pass({ usesMax: 1_000 }))),
      )
      let running: string[] = []
      for (let round = 0; round < 5; round++) {
        const left = running
        running = Array.from({ length: round < 4 ? 120 : 0 }, useId)
        await Promise.all([
          both(left.length, (of, index) => of.entitlements.end(left[index] ?? '', false)),
          both(running.length, async (of, index) => {
            // Each gateway has another order.
            const place = index % 2 ? index * 5 : index * 7 + round
            const { id = '' } = passes[place % 12] ?? {}
            expect(await use(id, running[index], at + 2, of)).toBe('used')
          }),
        ])
      }
      for (const { id } of passes) expect((await counts(id))?.[0]).toBe(0)
      if (name === 'SQLite') return
      const [found] = await own.run(
        'SELECT deadlocks AS times FROM pg_stat_database WHERE datname = current_database()',
      )
      expect(Number(found?.times)).toBe(0)
    })

    test('a failed use is given back once, and the attempts are limited', async () => {
      const { entitlements } = own.ledger
      const { id } = await buy(pass({ usesMax: 1 }))
      for (let attempt = 1; attempt <= attemptsMax; attempt++) {
        const failed = useId()
        expect(await use(id, failed)).toBe('used')
        expect(await counts(id)).toEqual([1, attempt, 1])
        expect(await use(id)).toBe('spent')
        expect(await entitlements.end(failed, false)).toBe(true)
        expect(await entitlements.end(failed, false)).toBe(false)
        expect(await entitlements.end(failed, true)).toBe(false)
        expect(await counts(id)).toEqual([0, attempt, 1])
      }
      expect(await use(id)).toBe('spent')
      const delivered = await buy(pass({ usesMax: 1 }))
      const last = useId()
      await use(delivered.id, last)
      expect(await entitlements.end(last, true)).toBe(true)
      expect(await entitlements.end(last, false)).toBe(false)
      expect(await counts(delivered.id)).toEqual([1, 1, 1])
      expect(await entitlements.end('none', true)).toBe(false)
    })

    test('attack: a payment that is reorganised, refunded or over entitles to nothing', async () => {
      const { row, transaction, confirm, id } = await buy(pass())
      const { settling, refunds } = own.ledger
      await settling.reopen(row.network, transaction.hash)
      expect([await use(id), await find(row.payer)]).toEqual(['over', []])
      await confirm()
      expect(await use(id)).toBe('used')
      expect(await use(id, useId(), untilMs)).toBe('over')
      await refunds.request({
        ...{ paymentId: row.id, account: newAddress(), amountAtomic: 1n, reason: 'operator' },
        ...{ note: undefined, perDayAtomic: 10n ** 9n, now: at },
      })
      expect([await use(id), await find(row.payer)]).toEqual(['over', []])
      expect(await use('pass|pay_none')).toBe('over')
      expect(await use(`day|weather|/forecast|2026-11-28`)).toBe('over')
      expect(await counts(id)).toEqual([1, 1, 3])
    })

    const trialOf = (route: string, wallet = newAddress(), usesMax = 2) =>
      ({ merchant: 'weather', route, wallet, network: 'eip155:1', usesMax }) as const
    const tryIt = (
      trial: Entitlement.Trial,
      max: number,
      { of = own.ledger, id = useId(), now = at } = {},
    ) => {
      const day = { id: Entitlement.dayId(trial, now), max }
      return of.entitlements.use({ id, entitlement: { trial }, day, attemptsMax, now })
    }

    test('attack: the trials of many wallets at two gateways stay within the day', async () => {
      const ends = await both(20, (of) => tryIt(trialOf('/day'), 5, { of }))
      expect([times(ends, 'used'), times(ends, 'day-spent')]).toEqual([5, 15])
      const day = Entitlement.dayId({ merchant: 'weather', route: '/day' }, at)
      expect(await counts(day)).toEqual([5, 5, 5])
      // A refused one leaves no row, so that wallets without end fill no table.
      const kept = async () => {
        const [row] = await own.run(
          "SELECT count(*) AS count FROM entitlements WHERE route = '/day' AND kind = 'trial'",
        )
        return Number(row?.count)
      }
      expect(await kept()).toBe(5)
      const wallet = trialOf('/day')
      expect(await tryIt(wallet, 6)).toBe('used')
      expect(await tryIt(wallet, 7)).toBe('used')
      expect(await tryIt(wallet, 99)).toBe('spent')
      expect(await tryIt(wallet, 99, { now: at + dayMs })).toBe('spent')
      // The configuration in force counts, and a lower one takes nothing back.
      expect(await tryIt({ ...wallet, usesMax: 3 }, 99)).toBe('used')
      expect(await tryIt({ ...wallet, usesMax: 1 }, 99)).toBe('spent')
      expect(await tryIt(trialOf('/day'), 3)).toBe('day-spent')
      expect(await counts(day)).toEqual([8, 8, 99])
      const address = wallet.wallet.toLowerCase() as Address
      expect(await tryIt({ ...wallet, wallet: address }, 99)).toBe('spent')
      expect(await find(address, { route: '/day' })).toMatchObject([{ kind: 'trial', uses: 3 }])
    })

    test('a failed trial is given back to its wallet and to the day, of which attempts are limited', async () => {
      const [first, second] = [trialOf('/fail'), trialOf('/fail')]
      const day = Entitlement.dayId(first, at)
      for (let attempt = 1; attempt <= attemptsMax; attempt++) {
        const id = useId()
        expect(await tryIt(attempt % 2 ? first : second, 1, { id })).toBe('used')
        expect(await tryIt(trialOf('/fail'), 1)).toBe('day-spent')
        await own.ledger.entitlements.end(id, false)
        expect(await counts(day)).toEqual([0, attempt, 1])
      }
      expect(await tryIt(trialOf('/fail'), 1)).toBe('day-spent')
      expect(await counts(Entitlement.trialId(first))).toEqual([0, 3, 2])
    })

    test('what a stopped process had running is given back, and nothing that has ended', async () => {
      const { id } = await buy(pass())
      const [ended, running] = [useId(), useId()]
      await use(id, ended)
      await use(id, running)
      await own.ledger.entitlements.end(ended, true)
      const trial = trialOf('/recover')
      await tryIt(trial, 9)
      await own.recover()
      expect(await counts(id)).toEqual([1, 2, 3])
      expect(await counts(Entitlement.trialId(trial))).toEqual([0, 1, 2])
      expect(await counts(Entitlement.dayId(trial, at))).toEqual([0, 1, 9])
      expect(await own.ledger.entitlements.end(running, true)).toBe(false)
      // The id stays used.
      expect(await use(id, running)).toBe('id-used')
    })

    test('a sweep deletes what no request can use any more', async () => {
      const short = await buy(again({ periodMs: 1 }))
      const long = await buy(again({ periodMs: 9 * dayMs }))
      const paid = await buy(pass({ periodMs: 1 }))
      const trial = trialOf('/sweep')
      const [ended, running] = [useId(), useId()]
      await tryIt(trial, 9, { id: ended })
      await own.ledger.entitlements.end(ended, true)
      await use(long.id, running)
      // A gateway that lives has a row.
      const [row] = await own.run(`SELECT * FROM entitlement_uses WHERE id = '${running}'`)
      if (row && 'gateway' in row)
        await own.run(`INSERT INTO gateways (id) VALUES ('${row.gateway}')`)
      const kept = async () => {
        const ids = [short.id, long.id, paid.id, Entitlement.trialId(trial)]
        const rows = await own.run(
          `SELECT id FROM entitlements WHERE id IN ('${ids.join("','")}', '${Entitlement.dayId(trial, at)}')
           UNION ALL SELECT id FROM entitlement_uses WHERE id IN ('${ended}', '${running}')`,
        )
        return rows.length
      }
      await own.ledger.entitlements.sweep(at)
      expect(await kept()).toBe(7)
      await own.ledger.entitlements.sweep(at + 3 * dayMs)
      expect(await kept()).toBe(4)
      expect(await find(long.row.payer)).toMatchObject([{ uses: 1 }])
      expect(await own.ledger.entitlements.end(running, false)).toBe(true)
      expect(await tryIt(trial, 9, { id: ended })).toBe('used')
    })
  })

test('a start gives back what the process before it had running', async () => {
  const db = openInMemory({ now: () => at })
  const { ledger } = databaseOf(db)
  const trial = { merchant: 'm', route: '/r', wallet: newAddress(), network: 'eip155:1' } as const
  const entitlement = { trial: { ...trial, usesMax: 1 } }
  const use = () => ledger.entitlements.use({ id: useId(), entitlement, attemptsMax, now: at })
  expect([await use(), await use()]).toEqual(['used', 'spent'])
  // A command beside the service gives nothing back.
  createLedger(db)
  expect(await use()).toBe('spent')
  databaseOf(db)
  expect(await use()).toBe('used')
  db.close()
})

test.skipIf(!hasPostgres)('what a gateway had running is given back when it is gone', async () => {
  const url = await gatewayDatabase()
  const now = () => at
  const times = { beatMs: 50, deadMs: 500, steadyMs: 200, gapMs: 400, freshMs: 450 }
  const [first, second] = [
    await startGateway(url, { now }),
    await startGateway(url, { now, times }),
  ]
  const lanes = [{ network: 'eip155:1', relayer: undefined }] as const
  const listener = { taken: async () => undefined, release: () => true, keep: () => undefined }
  await second.ledger.lanes.start(lanes, listener)
  const trial = { merchant: 'm', route: '/r', wallet: newAddress(), network: 'eip155:1' } as const
  const entitlement = { trial: { ...trial, usesMax: 3 } }
  const use = ({ ledger }: TestGateway) =>
    ledger.entitlements.use({ id: useId(), entitlement, attemptsMax, now: at })
  const uses = async ({ ledger }: TestGateway) =>
    (await ledger.entitlements.find({ ...trial, fingerprint: '', now: at }))[0]?.uses
  expect([await use(first), await use(second), await use(second)]).toEqual(Array(3).fill('used'))
  await first.die()
  await until('the uses of the first one are given back', async () => (await uses(second)) === 2)
  expect(second.reaped).toEqual([first.id])
  await second.leave()
  const third = await startGateway(url, { now })
  expect(await uses(third)).toBe(0)
  await third.leave()
})
