import { describe, expect, test } from 'bun:test'
import type { Ledger } from '../../db/Ledger'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import { createTurn } from '../../src/settlement/state/wait'
import { outcomeOf } from '../harness/outcome'
import { type Scripted, scripted } from '../harness/scripted'
import { jobOf, relayerKey, until } from '../harness/settlement'
import { slowLedger } from '../harness/slow-ledger'
import { createRandom } from '../soak/random'

/** Every call takes up to six turns of the event loop, drawn anew. */
function anySpeed(seed: string) {
  const random = createRandom(seed)
  return (ledger: Ledger) => slowLedger(ledger, () => random.between(0, 3))
}

/** Two relayers. */
const relayerKeys = [relayerKey, Crypto.bytes(account(9).privateKey)]

type Row = { relayer: string; nonce: number }

/** Account nonces by relayer, in their order. */
function noncesOf({ sql }: Scripted): number[][] {
  const rows = sql.query<Row, []>('SELECT relayer, nonce FROM transactions').all()
  const relayers = [...new Set(rows.map(({ relayer }) => relayer))]
  return relayers.map((each) =>
    rows
      .filter(({ relayer }) => relayer === each)
      .map(({ nonce }) => nonce)
      .toSorted((left, right) => left - right),
  )
}

function expectNoGap(own: Scripted): void {
  for (const nonces of noncesOf(own)) {
    const [first = 0] = nonces
    expect(nonces).toEqual(nonces.map((_, index) => first + index))
  }
}

describe.concurrent('a ledger that takes its time', () => {
  for (const seed of ['a', 'b', 'c', 'd'])
    test(`each money is sent once, each account nonce is used once (${seed})`, async () => {
      await using own = await scripted({ ledger: anySpeed(seed), settlement: { relayerKeys } })
      const transfers = Array.from({ length: 24 }, (_, index) =>
        own.sign({ from: 1 + (index % 4) }),
      )
      const outcomes = await Promise.all(
        // Each credential comes twice at once, past the claim that would keep the second one out.
        [...transfers, ...transfers].map((each) => own.pay(each)),
      )
      // One that finds the row before its commit is acknowledged is told that it is pending.
      const kinds = outcomes.map(({ kind }) => kind)
      expect(kinds.filter((kind) => kind !== 'confirmed' && kind !== 'pending')).toEqual([])
      const again = await Promise.all(transfers.map((each) => own.pay(each)))
      expect(again.map(({ kind }) => kind)).toEqual(Array(24).fill('confirmed'))
      const { rows } = { rows: own.sql.query('SELECT id FROM payments').all() }
      expect(rows).toHaveLength(24)
      expect(own.sql.query('SELECT payment_id FROM transaction_members').all()).toHaveLength(24)
      expectNoGap(own)
    })

  for (const seed of ['a', 'b'])
    test(`one balance is not reserved twice (${seed})`, async () => {
      await using own = await scripted({ ledger: anySpeed(seed), settlement: { relayerKeys } })
      // Enough for three.
      own.chain.fundsAtomic = 17_500n
      own.node.onSend = () => 'keep'
      const ended: string[] = []
      const paying = Array.from({ length: 8 }, async () => {
        const { kind } = await own.pay(own.sign())
        ended.push(kind)
        return kind
      })
      const written = () => own.sql.query('SELECT id FROM payments').all().length
      await until(() => written() === 3 && ended.length === 5)
      expect(written()).toBe(3)
      // The payments that were sent are still undecided.
      await own.crash()
      const kinds = await Promise.all(paying)
      expect(kinds.filter((kind) => kind === 'pending')).toHaveLength(3)
    })

  test('one job makes one transaction, however many ask for it', async () => {
    await using own = await scripted({ ledger: anySpeed('jobs'), settlement: { relayerKeys } })
    const ids = Array.from({ length: 12 }, (_, index) => `refund:${index % 4}`)
    const ends = await Promise.all([
      ...ids.map((id) => own.settlement.run(jobOf(own.network, { id }), { waitMs: 120_000 })),
      ...[1, 2, 3].map((from) => own.pay(own.sign({ from }))),
    ])
    expect(ends.map(({ kind }) => kind)).toEqual(Array(15).fill('confirmed'))
    const jobs = own.sql.query("SELECT hash FROM transactions WHERE kind = 'refund'").all()
    expect(jobs).toHaveLength(4)
    expectNoGap(own)
  })

  test('error: a commit that fails leaves no gap and no promise', async () => {
    let fails = 2
    const failing = (ledger: Ledger): Ledger => {
      const { launch } = ledger.settling
      const settling: Ledger['settling'] = {
        ...ledger.settling,
        launch: async (input) => {
          if (fails-- > 0) throw new Error('the connection is lost')
          return launch(input)
        },
      }
      return slowLedger({ ...ledger, settling }, () => 1)
    }
    await using own = await scripted({ ledger: failing })
    own.chain.fundsAtomic = 5_000n
    const transfer = own.sign()
    expect(await own.pay(transfer)).toMatchObject({ kind: 'unavailable' })
    expect(await own.pay(transfer)).toMatchObject({ kind: 'unavailable' })
    // The whole balance, and the first nonce, are free again.
    expect((await own.pay(transfer)).kind).toBe('confirmed')
    expect(noncesOf(own)).toEqual([[0]])
  })

  test('error: a job whose commit fails leaves no gap', async () => {
    let fails = 1
    const failing = (ledger: Ledger): Ledger => {
      const { launchJob } = ledger.settling
      const settling: Ledger['settling'] = {
        ...ledger.settling,
        launchJob: async (input) => {
          if (fails-- > 0) throw new Error('the connection is lost')
          return launchJob(input)
        },
      }
      return slowLedger({ ...ledger, settling }, () => 1)
    }
    await using own = await scripted({ ledger: failing })
    const run = () => own.settlement.run(jobOf(own.network), { waitMs: 120_000 })
    expect(await outcomeOf(run())).toThrow('the connection is lost')
    expect((await run()).kind).toBe('confirmed')
    expect(noncesOf(own)).toEqual([[0]])
  })
})

describe('the turn of a relayer', () => {
  test('a free turn begins at once, a taken one is waited for, and a failure passes it on', async () => {
    const turn = createTurn()
    const seen: string[] = []
    const first = Promise.withResolvers<void>()
    const taken = turn(async () => {
      seen.push('first')
      await first.promise
      throw new Error('failed')
    })
    expect(seen).toEqual(['first'])
    const second = turn(async () => void seen.push('second'))
    const third = turn(async () => void seen.push('third'))
    await Promise.resolve()
    expect(seen).toEqual(['first'])
    first.resolve()
    expect(await outcomeOf(taken)).toThrow('failed')
    await Promise.all([second, third])
    expect(seen).toEqual(['first', 'second', 'third'])
  })
})
