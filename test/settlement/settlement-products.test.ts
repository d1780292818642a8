import { afterEach, beforeEach, describe, expect, test } from 'bun:test'
import { encodeFunctionData, parseAbi, parseTransaction } from 'viem'
import type { Rows } from '../../db/Ledger'
import { write } from '../../db/sqlite/write'
import { RpcError, RpcFault } from '../../src/chain/client'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { balanceOf, execute, mine } from '../../src/demo/chains'
import * as Permit from '../../src/protocol/Permit'
import * as Transfer from '../../src/protocol/Transfer'
import { setAutomine } from '../harness/chains'
import { orderOf } from '../harness/desk-orders'
import { failureOf } from '../harness/outcome'
import {
  mineWhile,
  networkOf,
  payee,
  purposeOf,
  type SettlementFixture,
  signTransfer,
  startFixture,
  startNetwork,
  temporary,
  until,
} from '../harness/settlement'
import { later, robinhood, sign } from '../harness/stablecoin'
import { isPostgres } from '../harness/test-ledger'
import { createRandom } from '../soak/random'

let net: Awaited<ReturnType<typeof startNetwork>>
let network: NetworkConfig
let directory: ReturnType<typeof temporary>
let fixture: SettlementFixture

beforeEach(async () => {
  net = await startNetwork()
  network = networkOf(net.tap.url)
  directory = temporary()
  fixture = await startFixture([network], directory.path, { payoutExclusive: true })
})

afterEach(async () => {
  await fixture.stop()
  await net.stop()
  directory.remove()
})

const isSend = (method: string) => method.startsWith('eth_sendRawTransaction')
const lost = ({ method }: { method: string }) =>
  isSend(method) ? new Response('lost', { status: 503 }) : undefined
const paid = () => balanceOf(net.chain, network.asset.address, payee)
const token = parseAbi([
  'function allowance(address owner, address spender) view returns (uint256)',
  'function balanceOf(address holder) view returns (uint256)',
  'function nothing()',
])

/** A Permit2 transfer of account 3, which has neither gas nor an allowance, with its permit. */
async function withPermit(nonce: bigint, value = 5_000n): Promise<Transfer.Transfer> {
  const transfer = signTransfer(network, { method: 'permit2', from: 3 })
  const signature = await sign(robinhood, 3, 'Permit', {
    owner: account(3).address,
    spender: Permit.permit2Address,
    value,
    nonce,
    deadline: later,
  })
  return { ...transfer, permit2612: { valueAtomic: value, deadline: later, signature } }
}

describe('a transfer with an EIP-2612 permit', () => {
  test('a transfer with a permit needs no approve', async () => {
    const transfer = await withPermit(0n)
    const { permit2612, ...bare } = transfer
    expect(await fixture.settlement.verify(bare)).toMatchObject({
      kind: 'refused',
      reason: 'permit2_allowance_required',
    })
    expect(await fixture.settlement.verify(transfer)).toEqual({ ok: true })
    expect((await fixture.pay(transfer)).kind).toBe('confirmed')
    expect(await paid()).toBe(5_000n)
  })

  test('a permit is stored with the payment, and pays after a restart', async () => {
    const transfer = await withPermit(0n)
    net.tap.intercept = lost
    expect((await fixture.pay(transfer, {}, { waitMs: 50 })).kind).toBe('pending')
    await fixture.crash()
    net.tap.intercept = undefined
    fixture = await startFixture([network], directory.path, { payoutExclusive: true })
    const payment = await fixture.settlement.find(transfer)
    if (!payment) throw new Error('the payment is gone')
    expect(payment.transfer.permit2612).toEqual(transfer.permit2612)
    expect(Transfer.call(payment.transfer)).toEqual(Transfer.call(transfer))
    expect((await fixture.settlement.resume(payment, transfer, { waitMs: 120_000 })).kind).toBe(
      'confirmed',
    )
    expect(await paid()).toBe(5_000n)
  })

  test('two permits of one payer pay, and so does one that was sent before', async () => {
    const transfers = [await withPermit(0n), await withPermit(1n)]
    for (const transfer of transfers) expect((await fixture.pay(transfer)).kind).toBe('confirmed')
    const third = await withPermit(2n)
    const { signature } = third.permit2612 ?? { signature: '0x' }
    const permit = encodeFunctionData({
      abi: parseAbi([
        'function permit(address owner, address spender, uint256 value, uint256 deadline, bytes signature)',
      ]),
      args: [account(3).address, Permit.permit2Address, 5_000n, later, signature],
    })
    await execute(net.chain, [
      { from: account(8).address, to: network.asset.address, data: permit, gas: 200_000n },
    ])
    expect((await fixture.pay(third)).kind).toBe('confirmed')
    expect(await paid()).toBe(15_000n)
  })

  test('error: an invalid permit is refused before anything is written', async () => {
    for (const transfer of [await withPermit(1n), await withPermit(0n, 4_999n)])
      expect(await fixture.pay(transfer)).toMatchObject({ kind: 'refused' })
    expect(fixture.sql.query('SELECT * FROM payments').all()).toEqual([])
  })

  test('an external settlement with a permit is recognised', async () => {
    const transfer = await withPermit(0n)
    await execute(net.chain, [
      { from: account(8).address, ...Transfer.call(transfer), gas: 600_000n },
    ])
    expect((await fixture.pay(transfer, { bound: true })).kind).toBe('confirmed')
    expect(await paid()).toBe(5_000n)
  })
})

/** An order that is written with a payment; `max` is the payer's quota. */
function rowsOf(transfer: Transfer.Transfer, max?: number): Rows {
  const { payer, network, amountAtomic: totalAtomic } = transfer
  const changes = { network, payer, recipient: payer, totalAtomic }
  const order = orderOf(createRandom(Transfer.moneyKey(transfer)), changes)
  return { order, quota: max === undefined ? undefined : { payer, since: 'ord_', max } }
}

describe('rows that are written with a payment', () => {
  const orders = () => fixture.sql.query('SELECT payment_id payment, id FROM orders').all()
  const settle = (transfer: Transfer.Transfer, max?: number) =>
    fixture.settlement.settle(
      {
        transfer,
        purpose: purposeOf({ product: 'desk' }),
        receivedAt: Date.now(),
        rows: rowsOf(transfer, max),
      },
      120_000,
    )

  test('rows of a payment are written before its bytes are sent, once', async () => {
    const transfer = signTransfer(network)
    let onDisk: unknown
    net.tap.intercept = ({ method }) => {
      if (isSend(method)) onDisk ??= orders()
      return undefined
    }
    const outcome = await settle(transfer)
    if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
    expect(onDisk).toMatchObject([{ payment: outcome.payment.id }])
    expect((await settle(transfer)).kind).toBe('confirmed')
    expect(orders()).toHaveLength(1)
  })

  test('rows of a payment are written for an external settlement', async () => {
    const transfer = signTransfer(network)
    await execute(net.chain, [
      { from: account(8).address, ...Transfer.call(transfer), gas: 500_000n },
    ])
    const purpose = purposeOf({ bound: true })
    const asked = { transfer, purpose, receivedAt: Date.now(), rows: rowsOf(transfer) }
    const settling = fixture.settlement.settle(asked, 120_000)
    expect((await settling).kind).toBe('confirmed')
    expect(orders()).toHaveLength(1)
  })

  test('error: a refused payment leaves no rows, and does not affect other payments of the batch', async () => {
    await settle(signTransfer(network))
    await setAutomine(net.chain, false)
    // A busy relayer lets the next payments collect.
    const first = settle(signTransfer(network))
    await until(() => orders().length === 2)
    // The second one is refused: the quota of its payer is 0.
    const others = [undefined, 0, undefined].map((max) => settle(signTransfer(network), max))
    const settled = Promise.allSettled([first, ...others])
    const ends = (await mineWhile(net.chain, settled)).map((end) =>
      end.status === 'fulfilled' ? end.value.kind : String(end.reason),
    )
    expect(ends).toEqual([
      'confirmed',
      'confirmed',
      expect.stringContaining('order-quota'),
      'confirmed',
    ])
    expect(orders()).toHaveLength(4)
    expect(await paid()).toBe(20_000n)
  })
})

describe('the start of a delivery', () => {
  test('a delivery starts only once among many callers, also after a restart', async () => {
    const outcome = await fixture.pay(signTransfer(network), { product: 'facilitator' })
    if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
    const { id } = outcome.payment
    const answers = await Promise.all(
      Array.from({ length: 9 }, () => fixture.settlement.handOver(id)),
    )
    expect(answers.filter((each) => each)).toHaveLength(1)
    expect(await fixture.settlement.findById(id)).toMatchObject({
      delivery: 'delivered',
      attempts: 1,
    })
    await net.chain.rpc('anvil_reorg', [1, []])
    await until(() => fixture.events.some(({ event }) => event === 'payment-reorganised'))
    await fixture.crash()
    fixture = await startFixture([network], directory.path, { payoutExclusive: true })
    await until(async () => (await fixture.settlement.findById(id))?.state === 'confirmed')
    expect(await fixture.settlement.handOver(id)).toBe(false)
  })

  test('error: a delivery does not start for an unconfirmed or unknown payment', async () => {
    await setAutomine(net.chain, false)
    const outcome = await fixture.pay(signTransfer(network), {}, { waitMs: 30 })
    if (outcome.kind !== 'pending') throw new Error(outcome.kind)
    expect(await fixture.settlement.handOver(outcome.payment.id)).toBe(false)
    expect(await fixture.settlement.handOver('pay_none')).toBe(false)
    await until(async () => {
      await mine(net.chain)
      return (await fixture.settlement.findById(outcome.payment.id))?.state === 'confirmed'
    })
    expect(await fixture.settlement.handOver(outcome.payment.id)).toBe(true)
  })
})

test('a listener gets every state of a payment after it is on the disk', async () => {
  const heard: unknown[] = []
  const { settlement } = fixture
  settlement.onPayment(() => {
    throw new Error('a bad listener')
  })
  settlement.onPayment(async (id) => {
    // In SQLite, reads in the middle of a change are not allowed.
    if (!isPostgres) write(fixture.db, () => undefined)
    heard.push((await settlement.findById(id))?.state)
  })
  const transfer = signTransfer(network)
  expect((await fixture.pay(transfer)).kind).toBe('confirmed')
  await until(() => heard.length > 0)
  expect(heard).toEqual(['confirmed'])
  await net.chain.rpc('anvil_reorg', [1, []])
  await until(() => heard.length === 3)
  expect(heard).toEqual(['confirmed', 'broadcast', 'confirmed'])
  expect(fixture.events.some(({ event }) => event === 'settlement-fault')).toBe(true)
})

describe('reads', () => {
  const balance = () => ({
    to: network.asset.address,
    data: encodeFunctionData({ abi: token, functionName: 'balanceOf', args: [account(1).address] }),
  })
  const failing = () => ({
    to: network.asset.address,
    data: encodeFunctionData({ abi: token, functionName: 'nothing' }),
  })

  test('many reads share one call, each may fail, with the number of the block', async () => {
    await mine(net.chain)
    net.tap.calls.length = 0
    const { blockNumber, results } = await fixture.settlement.read(network.id, [
      balance(),
      failing(),
      balance(),
    ])
    expect(net.tap.calls.filter(({ method }) => method === 'eth_call')).toHaveLength(1)
    expect(blockNumber).toBe(BigInt((await net.chain.rpc('eth_blockNumber', [])) as string))
    expect(results.map((word) => word && BigInt(word))).toEqual([
      await balanceOf(net.chain, network.asset.address, account(1).address),
      undefined,
      await balanceOf(net.chain, network.asset.address, account(1).address),
    ])
    expect((await fixture.settlement.read(network.id, [])).results).toEqual([])
  })

  test('on an Arbitrum chain the number is that of the L2 block', async () => {
    // PUSH2 0x1234 PUSH0 MSTORE PUSH1 32 PUSH0 RETURN
    await net.chain.rpc('anvil_setCode', [`0x${'64'.padStart(40, '0')}`, '0x6112345f5260205ff3'])
    expect((await fixture.settlement.read(network.id, [balance()])).blockNumber).toBe(0x1234n)
  })

  test('error: a node that does not answer, refuses or gives an invalid answer is a fault', async () => {
    const answers = [
      new Response('no', { status: 503 }),
      { error: { code: -32000, message: 'out of gas' } },
      { result: '0x' },
      { result: 7 },
    ]
    for (const answer of answers) {
      net.tap.intercept = ({ method }) => (method === 'eth_call' ? answer : undefined)
      const reading = fixture.settlement.read(network.id, [balance()], { timeoutMs: 1_000 })
      expect(await failureOf(reading)).toBeInstanceOf(RpcFault)
    }
  })

  test('other requests and the present fees can be read', async () => {
    const { settlement } = fixture
    expect(await settlement.rpc(network.id, 'eth_chainId', [])).toBe('0x1237')
    const wrong = settlement.rpc(network.id, 'eth_nothing', [])
    expect(await failureOf(wrong)).toBeInstanceOf(RpcError)
    // A small tip does not follow the base fee, which falls with each block.
    net.tap.intercept = ({ method }) =>
      method === 'eth_maxPriorityFeePerGas' ? { result: '0x7' } : undefined
    await until(() => settlement.fees(network.id).maxTipWei === 7n)
    const outcome = await fixture.pay(signTransfer(network))
    if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
    const row = fixture.sql.query('SELECT raw FROM transactions').get() as {
      raw: `0x02${string}`
    }
    const fees = settlement.fees(network.id)
    expect(fees.maxFeeWei).toBeGreaterThan(fees.baseFeeWei)
    expect(fees.maxTipWei).toBe(7n)
    expect(parseTransaction(row.raw).maxPriorityFeePerGas).toBe(7n)
  })
})
