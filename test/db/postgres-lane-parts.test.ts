import { describe, expect, test } from 'bun:test'
import type { Address } from 'viem'
import type { Lane, LaneListener } from '../../db/LaneLedger'
import type { Times } from '../../db/postgres/gateways'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import type { Job } from '../../src/settlement/send/Job'
import type { Settlement } from '../../src/settlement/settlement'
import { cluster, payAt, relayerKeys, sellsAt } from '../harness/cluster'
import { startGateway } from '../harness/gateway-pair'
import { gatewayDatabase, hasPostgres } from '../harness/postgres'
import type { Scripted } from '../harness/scripted'
import { until } from '../harness/settlement'

/** Which gateway gets which account. */

const network = 'eip155:8453'
const keeper: Lane = { network, relayer: undefined }
const accounts = [5, 6].map((index): Lane => ({ network, relayer: account(index).address }))
const [firstKey, secondKey] = relayerKeys
/** The address of this account is the first in the order of the lanes. */
const desk = account(7)
/** None counts as dead by itself. */
const calm: Partial<Times> = { deadMs: 60_000, steadyMs: 60_000, gapMs: 30_000, freshMs: 45_000 }
/** It looks at the accounts only when another gateway tells it to. */
const told = { ...calm, beatMs: 3_600_000, freshMs: 3_600_000 }

function listening() {
  const taken: Lane[] = []
  const listener: LaneListener = {
    taken: async ({ nextNonce: _, ...lane }) => void taken.push(lane),
    release: () => true,
    keep: () => undefined,
  }
  return { taken, listener }
}

/** The end of a job of the desk. A gateway has the account before it has read what is open there. */
async function runAt({ settlement }: { settlement: Settlement }, job: Job): Promise<string> {
  let kind = ''
  await until(async () => {
    kind = (await settlement.run(job, { waitMs: 20_000 })).kind
    return kind !== 'unavailable'
  })
  return kind
}

describe.skipIf(!hasPostgres)('the accounts of a network', () => {
  test('a gateway that is about to stop takes no account that becomes free', async () => {
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

  test("a gateway that has only the desk's account sells nothing, and the other one sells", async () => {
    await using own = await cluster()
    const { chain } = own
    const options = { relayerKeys: [firstKey], deskKey: secondKey, times: calm }
    const one = await own.start(options)
    expect([one.settlement.hasDesk(), sellsAt(one, chain)]).toEqual([true, true])
    const other = await own.start(options)
    await until(() => sellsAt(other, chain) && !sellsAt(one, chain))
    expect([one, other].map(({ settlement }) => settlement.hasDesk())).toEqual([true, false])
    // Its account can send, but not for a sale.
    expect(await runAt(one, jobOf(chain, one.settlement.desk))).toBe('confirmed')
    expect(await payAt(one, chain, chain.sign())).toMatchObject({ kind: 'unavailable' })
    expect((await payAt(other, chain, chain.sign({ from: 2 }))).kind).toBe('confirmed')
    await own.leave(one)
    await until(() => other.settlement.hasDesk() && sellsAt(other, chain))
    expect((await payAt(other, chain, chain.sign({ from: 3 }))).kind).toBe('confirmed')
  })

  test("a relayer is given before the desk's account, which a stop gives to another gateway", async () => {
    await using own = await cluster()
    const { chain } = own
    const deskKey = Crypto.bytes(desk.privateKey)
    expect(relayerKeys.every((key) => desk.address < Crypto.addressOf(key))).toBe(true)
    const options = { relayerKeys, deskKey }
    const one = await own.start({ ...options, times: calm })
    const other = await own.start({ ...options, times: told })
    // Each has one of the two relayers.
    await until(() => sellsAt(other, chain))
    expect([one, other].map((each) => sellsAt(each, chain))).toEqual([true, true])
    expect([one, other].map(({ settlement }) => settlement.hasDesk())).toEqual([true, false])
    await own.leave(one)
    await until(() => other.settlement.hasDesk())
    expect(await runAt(other, jobOf(chain, other.settlement.desk))).toBe('confirmed')
    expect(other.reaped).toEqual([])
  })

  test('a gateway without an account gets the one of a gateway that dies, and sells', async () => {
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

/** A transaction of the desk. */
function jobOf({ network }: Scripted, relayer: Address) {
  return {
    ...{ id: 'refund:1', kind: 'refund' as const, product: 'desk' as const, network: network.id },
    ...{ relayer, to: relayer, data: '0x' as const, valueWei: 1n, gasLimit: 100_000n },
  }
}
