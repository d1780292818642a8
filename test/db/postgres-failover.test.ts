import { describe, expect, test } from 'bun:test'
import { authorizationOf } from '../harness/authorizations'
import { beginAt, cluster, payAt, relayerKeys, sellsAt } from '../harness/cluster'
import { startFailover } from '../harness/failover'
import { startGateway } from '../harness/gateway-pair'
import { hasPostgres } from '../harness/postgres'
import { relayer } from '../harness/scripted'
import { until } from '../harness/settlement'

const [key] = relayerKeys
const today = 20_000 * 86_400_000

describe.skipIf(!hasPostgres)('a failover to a server that lacks the last commits', () => {
  test('error: after a failover that lost commits, what a gateway has sent is written again, and confirmed once', async () => {
    await using server = await startFailover()
    await using own = await cluster(server.url)
    const { chain } = own
    const gateway = await own.start({ relayerKeys: [key], checkMs: 20 })
    expect((await payAt(gateway, chain, chain.sign())).kind).toBe('confirmed')
    await server.copy()
    chain.node.onSend = () => 'keep'
    const lost = [chain.sign({ from: 2 }), chain.sign({ from: 3 })]
    for (const each of lost) await beginAt(gateway, chain, each)
    const job = {
      ...{ id: 'refund:1', kind: 'refund' as const, product: 'desk' as const },
      ...{ network: chain.network.id, relayer: undefined, to: relayer, data: '0x' as const },
      ...{ valueWei: 1n, gasLimit: 100_000n },
    }
    const grant = {
      isTopUp: false,
      isSigned: false,
      row: {
        ...{ network: job.network, address: relayer, token: relayer, kind: 'grant' as const },
        ...{ amountWei: 7n, feeWei: 2n, approveHash: null, createdAt: today + 5 },
      },
      budget: { from: today, grants: 1, wei: 9n },
    } as const
    const rider = { kind: 'grant', grant } as const
    const running = gateway.settlement.run(job, { waitMs: 120_000, rider })
    await until(async () => (await gateway.settlement.job(job.id)) !== undefined)
    const before = await rowsOf(gateway)
    await server.failOver()
    await until(() => gateway.wentBack.length > 0)
    await until(() => gateway.ledger.fault() === undefined)
    const after = await rowsOf(gateway)
    expect(after.payments).toEqual(before.payments)
    expect(after.jobs).toEqual(before.jobs)
    expect(after.grants).toEqual([{ wei: '7', spent: '9' }])
    expect(after.grants).toEqual(before.grants)
    // Only unfinished transactions are written again; the first one was in the copy.
    expect(after.transactions).toEqual(before.transactions)
    chain.node.onSend = () => 'include'
    chain.chain.mine()
    for (const each of lost)
      await until(async () => (await gateway.settlement.find(each))?.state === 'confirmed')
    expect((await running).kind).toBe('confirmed')
    await until(() => sellsAt(gateway, chain))
    expect((await payAt(gateway, chain, chain.sign({ from: 4 }))).kind).toBe('confirmed')
    const nonces = (await rowsOf(gateway)).transactions.map(({ nonce }) => nonce)
    expect(nonces).toEqual([0, 1, 2, 3, 4])
    expect(gateway.fenced).toEqual([])
  })

  test('error: a payment that is included while the database is away is confirmed in the new one', async () => {
    await using server = await startFailover()
    await using own = await cluster(server.url)
    const { chain } = own
    const gateway = await own.start({ relayerKeys: [key], checkMs: 20 })
    await server.copy()
    chain.node.onSend = () => 'keep'
    const lost = chain.sign()
    await beginAt(gateway, chain, lost)
    const failing = server.failOver()
    chain.node.onSend = () => 'include'
    chain.chain.mine()
    await failing
    await until(async () => {
      const found = await gateway.settlement.find(lost).catch(() => undefined)
      return found?.state === 'confirmed'
    })
    expect(gateway.wentBack.length).toBeGreaterThan(0)
    expect(gateway.fenced).toEqual([])
  })
})

describe.skipIf(!hasPostgres)('a crash of the server under a gateway that lives', () => {
  test('attack: a ceiling whose answer is being made is not free for another answer', async () => {
    // A commit that waits for no disk would be lost.
    await using server = await startFailover({ wal_writer_delay: '10000ms' })
    const gateway = await startGateway(server.url, { now: Date.now })
    try {
      const { authorizations } = gateway.ledger
      const [sold, metered] = [authorizationOf(), authorizationOf()]
      for (const each of [sold, metered]) expect(await authorizations.insert(each)).toBe('stored')
      const charge = { amountAtomic: 70n, units: { input: 7 } }
      expect(await authorizations.meter(metered.id, charge, undefined)).toBe(true)
      await server.crash()
      const again = { ...sold, id: authorizationOf().id }
      const found = () =>
        Promise.all([
          ...[sold, metered].map(async ({ id }) => (await authorizations.findById(id))?.state),
          authorizations.insert(again),
        ])
      // Repeat it until the gateway has connected again.
      let states: unknown
      await until(async () => {
        states = await found().catch(() => undefined)
        return states !== undefined
      })
      expect(states).toEqual(['authorized', 'metered', 'known'])
    } finally {
      await gateway.leave()
    }
  })
})

/** The parts of the rows that must not be lost, without the times that are estimated. */
async function rowsOf({ sql }: { sql: <Row>(text: string) => Promise<readonly Row[]> }) {
  const [payments, transactions, jobs, grants] = await Promise.all([
    sql<Record<string, unknown>>(
      `SELECT (to_jsonb(payments) - 'known_block' - 'received_at') AS row FROM payments ORDER BY id`,
    ),
    sql<{ nonce: number }>(
      'SELECT hash, nonce, kind, raw, state FROM transactions ORDER BY nonce, hash',
    ),
    sql<Record<string, unknown>>('SELECT to_jsonb(jobs) AS row FROM jobs ORDER BY id'),
    sql<Record<string, unknown>>(
      `SELECT grants.amount_wei AS wei, grant_days.wei::text AS spent FROM grants, grant_days`,
    ),
  ])
  return { payments, transactions, jobs, grants }
}
