import { describe, expect, test } from 'bun:test'
import { beginAt, cluster, payAt, relayerKeys, sellsAt } from '../harness/cluster'
import { hasPostgres } from '../harness/postgres'
import { relayer } from '../harness/scripted'
import { until } from '../harness/settlement'

const [firstKey, secondKey] = relayerKeys

describe.skipIf(!hasPostgres)('payments whose account changes its holder', () => {
  test('a payment of an account that no gateway has configured is confirmed', async () => {
    await using own = await cluster()
    const { chain } = own
    chain.node.onSend = () => 'keep'
    const paid = chain.sign()
    const old = await own.start({ relayerKeys: [firstKey] })
    await beginAt(old, chain, paid)
    await own.leave(old)
    const next = await own.start({ relayerKeys: [secondKey], checkMs: 20 })
    await until(() => sellsAt(next, chain))
    chain.chain.mine()
    await until(async () => (await next.settlement.find(paid))?.state === 'confirmed')
    await until(async () => {
      const rows = await next.sql<{ state: string }>('SELECT state FROM transactions')
      return rows.every(({ state }) => state === 'mined')
    })
  })

  test('a reverted payment is sent again by the gateway that its buyer asks', async () => {
    await using own = await cluster()
    const { chain } = own
    const keys = { relayerKeys: [firstKey, secondKey] }
    const one = await own.start(keys)
    const other = await own.start(keys)
    await until(() => sellsAt(other, chain))
    const paid = chain.sign()
    chain.chain.failing.add(paid.nonce)
    expect((await payAt(one, chain, paid)).kind).toBe('reverted')
    chain.chain.failing.delete(paid.nonce)
    expect((await payAt(other, chain, paid)).kind).toBe('confirmed')
  })

  test('a payment that another sender settled is found, also when another gateway has its account', async () => {
    await using own = await cluster()
    const { chain } = own
    const keys = { relayerKeys: [firstKey, secondKey], checkMs: 20 }
    const keeper = await own.start(keys)
    const other = await own.start(keys)
    await until(() => sellsAt(other, chain))
    const paid = chain.sign()
    chain.chain.failing.add(paid.nonce)
    expect((await payAt(other, chain, paid)).kind).toBe('reverted')
    chain.chain.failing.delete(paid.nonce)
    chain.chain.settleExternally(paid)
    chain.chain.mine()
    chain.clock.ms += 400_000
    chain.chain.seconds += 400n
    chain.chain.mine()
    await until(async () => (await keeper.settlement.find(paid))?.state !== 'reverted')
  })
})

describe.skipIf(!hasPostgres)('a payer whose transactions fail', () => {
  test('attack: a failure at one gateway counts at the other', async () => {
    await using own = await cluster()
    const { chain } = own
    const options = { relayerKeys: [firstKey, secondKey], payerFailuresMax: 2 }
    const one = await own.start(options)
    const other = await own.start(options)
    await until(() => sellsAt(other, chain))
    const failAt = async (process: typeof one) => {
      const transfer = chain.sign()
      chain.chain.failing.add(transfer.nonce)
      const before = process.ledger.failures.fullAt(transfer.payer)
      expect((await payAt(process, chain, transfer)).kind).toBe('reverted')
      for (const each of [one, other])
        await until(() => each.ledger.failures.fullAt(transfer.payer) > before)
    }
    await failAt(one)
    await failAt(other)
    const locked = { kind: 'unavailable', detail: expect.stringContaining('failed on chain') }
    for (const each of [one, other])
      expect(await payAt(each, chain, chain.sign())).toMatchObject(locked)
    expect((await payAt(one, chain, chain.sign({ from: 2 }))).kind).toBe('confirmed')
    // A gateway knows them from its start.
    const third = await own.start(options)
    const { payer } = chain.sign()
    expect(third.ledger.failures.fullAt(payer)).toBe(one.ledger.failures.fullAt(payer))
  })
})

describe.skipIf(!hasPostgres)('a job of two gateways', () => {
  test('one job at both gateways at once is sent once, and both report its end', async () => {
    await using own = await cluster()
    const { chain } = own
    const keys = { relayerKeys: [firstKey, secondKey] }
    const one = await own.start(keys)
    const other = await own.start(keys)
    await until(() => sellsAt(other, chain))
    for (let round = 0; round < 5; round++) {
      const job = {
        id: `refund:${round}`,
        kind: 'refund' as const,
        product: 'desk' as const,
        network: chain.network.id,
        relayer: undefined,
        to: relayer,
        data: '0x' as const,
        valueWei: 1n,
        gasLimit: 100_000n,
      }
      const ends = await Promise.all(
        [one, other].map(({ settlement }) => settlement.run(job, { waitMs: 20_000 })),
      )
      expect(ends.map(({ kind }) => kind)).toEqual(['confirmed', 'confirmed'])
    }
    const [sent] = await one.sql<{ count: number }>('SELECT count(*) FROM transactions')
    expect(sent?.count).toBe(5)
  })
})
