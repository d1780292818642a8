import { describe, expect, test } from 'bun:test'
import { beginAt, cluster, payAt, relayerKeys, sellsAt } from './harness/cluster'
import { startFailover } from './harness/failover'
import { hasPostgres } from './harness/postgres'
import { relayer } from './harness/scripted'
import { until } from './harness/settlement'

const [key] = relayerKeys

describe.skipIf(!hasPostgres)('a failover to a server that lacks the last commits', () => {
  test('error: what a gateway has sent is written again, and confirmed once', async () => {
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
    const running = gateway.settlement.run(job, { waitMs: 120_000 })
    await until(async () => (await gateway.settlement.job(job.id)) !== undefined)
    const before = await rowsOf(gateway)
    await server.failOver()
    await until(() => gateway.wentBack.length > 0)
    await until(() => gateway.ledger.fault() === undefined)
    const after = await rowsOf(gateway)
    expect(after.payments).toEqual(before.payments)
    expect(after.jobs).toEqual(before.jobs)
    // Only what is driven comes back; the first transaction was in the copy.
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

/** What must not be lost of the rows, without the times that are estimated. */
async function rowsOf({ sql }: { sql: <Row>(text: string) => Promise<readonly Row[]> }) {
  const [payments, transactions, jobs] = await Promise.all([
    sql<Record<string, unknown>>(
      `SELECT (to_jsonb(payments) - 'known_block' - 'received_at') AS row FROM payments ORDER BY id`,
    ),
    sql<{ nonce: number }>(
      'SELECT hash, nonce, kind, raw, state FROM transactions ORDER BY nonce, hash',
    ),
    sql<Record<string, unknown>>('SELECT to_jsonb(jobs) AS row FROM jobs ORDER BY id'),
  ])
  return { payments, transactions, jobs }
}
