import { describe, expect, test } from 'bun:test'
import type { Lane, LaneListener } from '../db/LaneLedger'
import { account } from '../src/demo/accounts'
import { cluster, payAt, relayerKeys, sellsAt } from './harness/cluster'
import { startGateway } from './harness/gatewaypair'
import { gatewayDatabase, hasPostgres } from './harness/postgres'
import { until } from './harness/settlement'

/** Which gateway gets which account. */

const network = 'eip155:8453'
const keeper: Lane = { network, relayer: undefined }
const accounts = [5, 6].map((index): Lane => ({ network, relayer: account(index).address }))
const [firstKey, secondKey] = relayerKeys

function listening() {
  const taken: Lane[] = []
  const listener: LaneListener = {
    taken: async ({ nextNonce: _, ...lane }) => void taken.push(lane),
    release: () => true,
    keep: () => undefined,
    driven: () => [],
  }
  return { taken, listener }
}

describe.skipIf(!hasPostgres)('the accounts of a network', () => {
  test('behavior: a gateway that is about to stop takes no account that becomes free', async () => {
    const url = await gatewayDatabase()
    const [first, leaving, next] = [listening(), listening(), listening()]
    const one = await startGateway(url, { now: Date.now })
    await one.ledger.lanes.start([keeper, ...accounts], first.listener)
    const other = await startGateway(url, { now: Date.now })
    let third: typeof one | undefined
    try {
      await other.ledger.lanes.start([keeper, ...accounts], leaving.listener)
      await until(() => leaving.taken.length > 0)
      other.ledger.lanes.retire()
      await one.leave()
      third = await startGateway(url, { now: Date.now })
      await third.ledger.lanes.start([keeper, ...accounts], next.listener)
      await until(() => next.taken.length === 2)
      expect(leaving.taken).toHaveLength(1)
      expect(next.taken).toContainEqual(keeper)
      expect(leaving.taken.every((lane) => other.ledger.lanes.has(lane))).toBe(true)
    } finally {
      for (const each of [one, other, third]) await each?.leave()
    }
  })

  test("behavior: the desk's account is one of the accounts that gateways share", async () => {
    await using own = await cluster()
    const { chain } = own
    const options = { relayerKeys: [firstKey], deskKey: secondKey }
    const one = await own.start(options)
    expect([one.settlement.hasDesk(), sellsAt(one, chain)]).toEqual([true, true])
    const other = await own.start(options)
    // Each has one of the two, and only one of them sells.
    await until(() => [one, other].every(({ settlement }) => hasOne(settlement, chain.network.id)))
    const seller = sellsAt(one, chain) ? one : other
    expect((await payAt(seller, chain, chain.sign())).kind).toBe('confirmed')
    await own.leave(seller)
    const left = seller === one ? other : one
    await until(() => left.settlement.hasDesk() && sellsAt(left, chain))
    expect((await payAt(left, chain, chain.sign({ from: 2 }))).kind).toBe('confirmed')
  })

  test('behavior: a gateway without an account gets the one of a gateway that dies, and sells', async () => {
    await using own = await cluster()
    const { chain } = own
    const keys = { relayerKeys: [firstKey, secondKey] }
    const one = await own.start(keys)
    const other = await own.start(keys)
    await until(() => sellsAt(other, chain))
    const standby = await own.start(keys)
    expect(sellsAt(standby, chain)).toBe(false)
    const refused = await payAt(standby, chain, chain.sign())
    expect(refused).toMatchObject({ kind: 'unavailable' })
    await one.die()
    await until(() => sellsAt(standby, chain))
    expect((await payAt(standby, chain, chain.sign({ from: 2 }))).kind).toBe('confirmed')
    expect(sellsAt(other, chain)).toBe(true)
    const sent = await standby.sql<{ nonce: number }>('SELECT nonce FROM transactions')
    expect(sent).toEqual([{ nonce: 0 }])
  })
})

type Settlement = Awaited<ReturnType<Awaited<ReturnType<typeof cluster>>['start']>>['settlement']

function hasOne(settlement: Settlement, id: Lane['network']): boolean {
  return settlement.hasDesk() !== settlement.isReady(id)
}
