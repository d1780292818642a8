import { describe, expect, test } from 'bun:test'
import { parseTransaction } from 'viem'
import { createHead, fees, type Head, learnFees, priceOf } from '../../src/chain/head'
import { mine } from '../../src/demo/chains'
import { setAutomine } from '../harness/chains'
import { isSend, type OwnSettlement, ownSettlement, withoutSync } from '../harness/own-settlement'
import { mineWhile, signTransfer, startTap, until } from '../harness/settlement'

const gwei = 1_000_000_000n
const cap = 50n * gwei
const hex = (wei: bigint) => `0x${wei.toString(16)}`

/** The answer of a node to a request for a tip. */
const suggesting =
  (wei: bigint) =>
  ({ method }: { method: string }) =>
    method === 'eth_maxPriorityFeePerGas' ? { result: hex(wei) } : undefined

const sent = ({ fixture }: OwnSettlement) =>
  fixture.sql
    .query<{ raw: `0x02${string}` }, []>('SELECT raw FROM transactions ORDER BY rowid')
    .all()
    .map(({ raw }) => parseTransaction(raw))

async function setBaseFee({ net }: OwnSettlement, wei: bigint): Promise<void> {
  await net.chain.rpc('anvil_setNextBlockBaseFeePerGas', [hex(wei)])
  await mine(net.chain)
}

/** Resolves when a health check that started after this call has ended. */
async function untilChecked(own: OwnSettlement): Promise<void> {
  const before = own.asked('eth_maxPriorityFeePerGas')
  await until(() => own.asked('eth_maxPriorityFeePerGas') >= before + 2)
}

describe('fees', () => {
  const learnt = (said: Parameters<typeof learnFees>[1]): Head => {
    const head = createHead()
    head.baseFeeWei = said.baseFees[0] ?? 0n
    learnFees(head, said)
    return head
  }

  test('the tip is at most the base fee, or a floor where that is tiny', () => {
    const tipOf = (tip: bigint, baseFee: bigint) =>
      fees(learnt({ tips: [tip], baseFees: [baseFee] }), cap).maxTipWei
    expect(tipOf(2n * gwei, 10_000_000n)).toBe(10_000_000n)
    expect(tipOf(5n, 10_000_000n)).toBe(5n)
    expect(tipOf(0n, 10_000_000n)).toBe(0n)
    expect(tipOf(2n * gwei, 7n)).toBe(1_000_000n)
    expect(tipOf(100n, 7n)).toBe(100n)
  })

  test('a transaction that is not included bids the suggested tip, within the cap', () => {
    const head = learnt({ tips: [2n * gwei], baseFees: [10_000_000n] })
    expect(fees(head, cap, true)).toEqual({ maxFeeWei: 2_020_000_000n, maxTipWei: 2n * gwei })
    expect(fees(head, gwei, true)).toEqual({ maxFeeWei: gwei, maxTipWei: gwei })
    expect(priceOf(head)).toBe(20_000_000n)
  })

  test('attack: the highest value of several nodes does not set the fees', () => {
    const head = learnt({ tips: [40n * gwei, 5n], baseFees: [40n * gwei, 100n] })
    expect(fees(head, cap).maxTipWei).toBe(5n)
    // Later values of the first node count up to eight times the agreed value.
    head.baseFeeWei = 40n * gwei
    expect(fees(head, cap).maxFeeWei).toBe(2n * 800n + 5n)
    head.baseFeeWei = 300n
    expect(fees(head, cap).maxFeeWei).toBe(605n)
    const three = learnt({ tips: [0n, 5n, 40n * gwei], baseFees: [100n, 40n * gwei, 1n] })
    expect(fees(three, cap)).toEqual({ maxFeeWei: 205n, maxTipWei: 5n })
  })
})

describe.concurrent('the tip of a transaction', () => {
  test('attack: a node that suggests the fee cap is paid the base fee', async () => {
    await using own = await ownSettlement()
    own.net.tap.intercept = suggesting(20n * gwei)
    await setBaseFee(own, 10_000_000n)
    await untilChecked(own)
    expect((await own.fixture.pay(signTransfer(own.network))).kind).toBe('confirmed')
    expect(sent(own)[0]?.maxPriorityFeePerGas).toBeLessThanOrEqual(10_000_000n)
  })

  test('attack: one of two nodes with false values changes neither tip nor base fee', async () => {
    await using own = await ownSettlement()
    const other = startTap(own.net.chain.url)
    try {
      await setBaseFee(own, gwei)
      own.net.tap.intercept = async (call, forward) => {
        if (call.method !== 'eth_getBlockByNumber') return suggesting(20n * gwei)(call)
        const { result } = (await (await forward()).json()) as { result: object }
        return { result: { ...result, baseFeePerGas: hex(20n * gwei) } }
      }
      other.intercept = suggesting(gwei / 2n)
      await own.reopen({ rpcUrls: [own.net.tap.url, other.url] })
      expect((await own.fixture.pay(signTransfer(own.network))).kind).toBe('confirmed')
      const [transaction] = sent(own)
      expect(transaction?.maxPriorityFeePerGas).toBe(gwei / 2n)
      expect(transaction?.maxFeePerGas).toBeLessThanOrEqual(17n * gwei)
      // A node that does not answer is not waited for.
      other.intercept = () => new Response('down', { status: 503 })
      await untilChecked(own)
      expect(own.fixture.settlement.isReady(own.network.id)).toBe(true)
    } finally {
      other.stop()
    }
  })

  test('a transaction that is not included is sent again with the suggested tip', async () => {
    await using own = await ownSettlement()
    await setBaseFee(own, 10_000_000n)
    const suggest = suggesting(gwei)
    own.net.tap.intercept = (call) => suggest(call) ?? withoutSync(call)
    await own.reopen({ replaceAfterSeconds: 0.2 })
    await setAutomine(own.net.chain, false)
    const paying = own.fixture.pay(signTransfer(own.network))
    await until(() => sent(own).length === 2)
    expect((await mineWhile(own.net.chain, paying)).kind).toBe('confirmed')
    const [first, second] = sent(own)
    expect(first?.maxPriorityFeePerGas).toBeLessThanOrEqual(10_000_000n)
    expect(second?.maxPriorityFeePerGas).toBe(gwei)
  })

  test('a node that refuses the fees gets its suggestion at once', async () => {
    await using own = await ownSettlement()
    await setBaseFee(own, 10_000_000n)
    const suggest = suggesting(gwei)
    own.net.tap.intercept = (call) => {
      if (!isSend(call.method)) return suggest(call)
      const tip = parseTransaction(call.params[0] as `0x02${string}`).maxPriorityFeePerGas ?? 0n
      const message = 'transaction underpriced: gas tip cap 10000000, minimum needed 1000000000'
      return tip < gwei ? { error: { code: -32000, message } } : undefined
    }
    await own.reopen({ replaceAfterSeconds: 600 })
    expect((await own.fixture.pay(signTransfer(own.network))).kind).toBe('confirmed')
  })
})

describe.concurrent('a budget of gas', () => {
  const budgets = (gateway: bigint) => ({
    gasPerDayWei: { gateway, facilitator: 10n ** 18n, desk: 0n, sponsor: 0n, channels: 0n },
  })

  test('attack: transactions in progress count, so that concurrent ones do not exceed the budget', async () => {
    await using own = await ownSettlement({ network: { batchMax: 1 } })
    await setBaseFee(own, gwei)
    // Of five payments that use their limit of 200,000 at up to twice this price, at least two.
    await own.reopen({ batchMax: 1, ...budgets(5n * 200_000n * gwei) })
    await setAutomine(own.net.chain, false)
    const first = await own.begin(signTransfer(own.network))
    const kinds: string[] = []
    const transfers = Array.from({ length: 6 }, (_, index) =>
      signTransfer(own.network, { from: 1 + (index % 2), amountAtomic: BigInt(10 + index) }),
    )
    for (const transfer of transfers) {
      const outcome = await own.fixture.pay(transfer, {}, { waitMs: 0 })
      kinds.push(outcome.kind)
      if (outcome.kind === 'pending') await own.untilSent(outcome.payment.transaction)
      if (outcome.kind !== 'unavailable' || !outcome.detail.includes('budget')) continue
      expect(outcome.retryAfterSeconds).toBeLessThan(10)
      expect(await own.fixture.settlement.find(transfer)).toBeUndefined()
    }
    const open = sent(own).reduce((sum, { gas = 0n }) => sum + gas, 0n)
    expect(open * gwei).toBeLessThanOrEqual(6n * 200_000n * gwei)
    expect(kinds).toContain('unavailable')
    // The facilitator has its own.
    await own.begin(signTransfer(own.network, { amountAtomic: 77n }), { product: 'facilitator' })
    await setAutomine(own.net.chain, true)
    await mine(own.net.chain)
    await until(
      async () => (await own.fixture.settlement.findById(first.id))?.state === 'confirmed',
    )
    // Unused gas is available again.
    const last = transfers.at(-1)
    if (!last) throw new Error('no transfer')
    await until(async () => (await own.fixture.pay(last)).kind === 'confirmed')
  })
})
