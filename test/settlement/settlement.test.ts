import { afterAll, afterEach, beforeEach, describe, expect, test } from 'bun:test'
import type { Hex } from 'viem'
import * as Multicall from '../../src/chain/multicall'
import * as Receipt from '../../src/chain/receipt'
import { account } from '../../src/demo/accounts'
import { balanceOf, execute } from '../../src/demo/chains'
import { type Claims, claimMoney } from '../../src/paywall/checkout'
import * as Transfer from '../../src/protocol/Transfer'
import { deploy, setAutomine } from '../harness/chains'
import { outcomeOf } from '../harness/outcome'
import {
  mineWhile,
  networkOf,
  payee,
  type SettlementFixture,
  signTransfer,
  startFixture,
  startNetwork,
  temporary,
  until,
} from '../harness/settlement'
import * as Wallets from '../harness/wallets'

const usdg = await startNetwork('usdg')
const usdc = await startNetwork('usdc')
const network = networkOf(usdg.tap.url, 'usdg')
const reverting = networkOf(usdc.tap.url, 'usdc')

let directory: ReturnType<typeof temporary>
let fixture: SettlementFixture

beforeEach(async () => {
  usdg.tap.intercept = undefined
  usdc.tap.intercept = undefined
  directory = temporary()
  fixture = await startFixture([network, reverting], directory.path, { payoutExclusive: true })
  usdg.tap.calls.length = 0
})

afterEach(async () => {
  await fixture.stop()
  directory.remove()
})

afterAll(async () => {
  await usdg.stop()
  await usdc.stop()
})

/** Settles a transfer from account 8, as a reader of the credential could. */
async function settleByOther(chain: typeof usdg.chain, transfer: Transfer.Transfer): Promise<Hex> {
  const [receipt] = await execute(chain, [
    { from: account(8).address, ...Transfer.call(transfer), gas: 500_000n },
  ])
  if (!receipt) throw new Error('no receipt')
  return receipt.transactionHash
}

function paymentCount(): number {
  return fixture.sql.query<{ n: number }, []>('SELECT count(*) n FROM payments').get()?.n ?? -1
}

describe('a payment', () => {
  for (const method of ['eip3009', 'permit2'] as const) {
    for (const [name, where, config] of [
      ['usdg', usdg, network],
      ['usdc', usdc, reverting],
    ] as const) {
      test(`${method} in ${name} is confirmed with its own Transfer log`, async () => {
        const before = await balanceOf(where.chain, config.asset.address, payee)
        const transfer = signTransfer(config, { method, amountAtomic: 12_345n })
        const outcome = await fixture.pay(transfer)
        expect(outcome).toMatchObject({
          kind: 'confirmed',
          payment: { state: 'confirmed', delivery: 'none', attempts: 0, answered: false, transfer },
        })
        expect(await balanceOf(where.chain, config.asset.address, payee)).toBe(before + 12_345n)
        expect(await fixture.settlement.find(transfer)).toEqual(
          outcome.kind === 'confirmed' ? outcome.payment : undefined,
        )
      })
    }
  }

  test('a payment takes two RPC calls, and three where the node cannot send and wait', async () => {
    await fixture.pay(signTransfer(network))
    const methods = () =>
      usdg.tap.calls
        .map(({ method }) => method)
        .filter((method) => /^eth_(call|send|getTransactionReceipt)/.test(method))
    expect(methods()).toEqual(['eth_call', 'eth_sendRawTransactionSync'])
    usdg.tap.intercept = ({ method }) =>
      method === 'eth_sendRawTransactionSync'
        ? { error: { code: -32601, message: 'the method does not exist' } }
        : undefined
    await fixture.pay(signTransfer(network))
    usdg.tap.calls.length = 0
    expect((await fixture.pay(signTransfer(network))).kind).toBe('confirmed')
    // A missing receipt is polled for.
    expect([...new Set(methods())]).toEqual([
      'eth_call',
      'eth_sendRawTransaction',
      'eth_getTransactionReceipt',
    ])
  })

  test('the signature of a wallet contract is checked by the wallet', async () => {
    const wallet = await deploy(usdg.chain, Wallets.SmartWallet, [account(1).address])
    await execute(usdg.chain, [mintTo(wallet, 1_000_000n)])
    const transfer = signTransfer(network, { payer: wallet })
    expect(await fixture.pay(transfer)).toMatchObject({ kind: 'confirmed' })
    const wrong = signTransfer(network, { payer: wallet, from: 2 })
    expect(await fixture.pay(wrong)).toMatchObject({
      kind: 'refused',
      reason: 'invalid_exact_evm_signature',
    })
  })

  test('v of 0 or 1 settles like 27 or 28', async () => {
    const transfer = signTransfer(network, { method: 'permit2' })
    const v = transfer.signature.endsWith('1b') ? '00' : '01'
    const signature = `${transfer.signature.slice(0, -2)}${v}` as Hex
    expect(await fixture.pay({ ...transfer, signature })).toMatchObject({ kind: 'confirmed' })
  })

  test('32 concurrent payments of one relayer are all confirmed, without a nonce gap', async () => {
    const transfers = Array.from({ length: 32 }, (_, index) =>
      signTransfer(network, {
        from: 1 + (index % 5),
        amountAtomic: 100n,
        method: index % 5 < 2 && index % 2 ? 'permit2' : 'eip3009',
      }),
    )
    const outcomes = await Promise.all(transfers.map((transfer) => fixture.pay(transfer)))
    expect(outcomes.map(({ kind }) => kind)).toEqual(transfers.map(() => 'confirmed'))
    const rows = fixture.sql
      .query<{ nonce: number; state: string }, []>(
        'SELECT nonce, state FROM transactions ORDER BY nonce',
      )
      .all()
    const first = rows[0]?.nonce ?? 0
    expect(rows).toEqual(rows.map((_, index) => ({ nonce: first + index, state: 'mined' })))
    expect(rows.length).toBeLessThan(32)
    const logs = fixture.sql
      .query('SELECT DISTINCT transaction_hash, log_index FROM payments')
      .all()
    expect(logs).toHaveLength(32)
  })

  test('concurrent payments of the same money are written once', async () => {
    const transfer = signTransfer(network)
    const outcomes = await Promise.all([1, 2, 3, 4].map(() => fixture.pay(transfer)))
    expect(outcomes.map(({ kind }) => kind)).toEqual(Array(4).fill('confirmed'))
    expect(paymentCount()).toBe(1)
    expect(fixture.sql.query('SELECT * FROM transactions').all()).toHaveLength(1)
    expect(await fixture.pay(transfer, { fingerprint: 'e'.repeat(64) })).toMatchObject({
      kind: 'refused',
      reason: 'invalid_exact_evm_nonce_already_used',
    })
  })

  test('attack: an x402 credential that the chain publishes whole joins no payment', async () => {
    const transfer = signTransfer(network)
    const published = { credentialHash: undefined }
    expect((await fixture.pay(transfer, published)).kind).toBe('confirmed')
    expect(await fixture.pay(transfer, published)).toMatchObject({
      kind: 'refused',
      reason: 'invalid_exact_evm_nonce_already_used',
    })
  })

  test('a claim is exclusive until it is released', () => {
    const transfer = signTransfer(network)
    const claims: Claims = new Map()
    const claim = claimMoney(claims, transfer)
    expect(claim).toBeDefined()
    const upper = transfer.nonce.toUpperCase().replace('X', 'x') as `0x${string}`
    expect(claimMoney(claims, { ...transfer, nonce: upper })).toBeUndefined()
    claim?.release()
    const next = claimMoney(claims, transfer)
    expect(next).toBeDefined()
    claim?.release()
    expect(claimMoney(claims, transfer)).toBeUndefined()
  })

  test('gas is counted to the product and the day', async () => {
    await fixture.pay(signTransfer(network))
    const rows = fixture.sql
      .query<{ product: string; wei: string }, []>('SELECT product, wei FROM gas_spent')
      .all()
    expect(rows).toHaveLength(1)
    expect(BigInt(rows[0]?.wei ?? 0)).toBeGreaterThan(0n)
    expect(rows[0]?.product).toBe('gateway')
  })
})

describe('delivery', () => {
  test('a delivery is started before the answer, counted, redeemable and ended once', async () => {
    const outcome = await fixture.pay(signTransfer(network))
    if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
    const { id } = outcome.payment
    const { settlement } = fixture
    expect(await settlement.beginDelivery(id)).toMatchObject({
      attempts: 1,
      delivery: 'delivering',
    })
    await settlement.endDelivery(id, {
      delivered: false,
      upstreamStatus: 503,
      redeemTokenHash: 'abc',
      redeemUntil: 5,
    })
    expect(await settlement.findByRedeemToken('abc')).toMatchObject({
      id,
      delivery: 'none',
      upstreamStatus: 503,
    })
    await settlement.markAnswered(id)
    expect(await settlement.beginDelivery(id)).toMatchObject({ attempts: 2, answered: true })
    await settlement.endDelivery(id, { delivered: true, upstreamStatus: 200, truncated: false })
    await settlement.endDelivery(id, { delivered: true, upstreamStatus: 200, truncated: true })
    expect(await settlement.findById(id)).toMatchObject({ delivery: 'delivered', truncated: true })
    expect(await outcomeOf(settlement.beginDelivery(id))).toThrow('not to be delivered')
  })
})

describe('a refusal', () => {
  /** With the numbers and names that the payer is told. */
  const cases: [string, () => Transfer.Transfer, string, RegExp][] = [
    [
      'eip3009 above the balance',
      () => signTransfer(network, { amountAtomic: 10n ** 15n }),
      'invalid_exact_evm_insufficient_balance',
      /^The payer 0x\w{40} has [\d.]+ USDG \(\d+\) on eip155:4663, and the payment is 1000000000 USDG \(1000000000000000\)\.$/,
    ],
    [
      'permit2 above the balance',
      () => signTransfer(network, { method: 'permit2', amountAtomic: 10n ** 15n }),
      'permit2_insufficient_balance',
      /^The payer 0x\w{40} has [\d.]+ USDG \(\d+\) on eip155:4663, and the payment is 1000000000 USDG/,
    ],
    [
      'permit2 without the approval',
      () => signTransfer(network, { method: 'permit2', from: 3 }),
      'permit2_allowance_required',
      /^Permit2 0x000000000022D473030F116dDEE9F6B43aC78BA3 may move 0 USDG \(0\) of the payer 0x\w{40} on eip155:4663, and the payment is [\d.]+ USDG \(\d+\): approve Permit2 at the token 0x\w{40}/,
    ],
    [
      'eip3009 signed by another key',
      () => ({ ...signTransfer(network), payer: account(2).address }),
      'invalid_exact_evm_signature',
      /^The signature is not of the payer 0x\w{40}\. Its EIP-712 domain must be name "[\w ]+", version "\d", chainId 4663, verifyingContract 0x\w{40};/,
    ],
    [
      'permit2 signed by another key',
      () => ({ ...signTransfer(network, { method: 'permit2' }), payer: account(2).address }),
      'invalid_permit2_signature',
      /domain must be name "Permit2", chainId 4663, verifyingContract 0x000000000022D473030F116dDEE9F6B43aC78BA3;/,
    ],
    [
      'eip3009 that has expired',
      () => signTransfer(network, { validBefore: 1_000n }),
      'invalid_exact_evm_payload_authorization_valid_before',
      /validBefore is 1000, and the time here is 1[789]\d{8}\. Sign a new one/,
    ],
    [
      'permit2 that has expired',
      () => signTransfer(network, { method: 'permit2', validBefore: 1_000n }),
      'permit2_deadline_expired',
      /deadline is 1000, and the time here is 1[789]\d{8}\. Sign a new one/,
    ],
    [
      'eip3009 that is not valid yet',
      () => signTransfer(network, { validAfter: BigInt(Math.floor(Date.now() / 1000) + 100) }),
      'invalid_exact_evm_payload_authorization_valid_after',
      /validAfter is 1[789]\d{8}, and the time here is 1[789]\d{8}\. Set your clock/,
    ],
  ]
  for (const [name, make, reason, detail] of cases) {
    test(`error: ${name} is ${reason}`, async () => {
      expect(await fixture.pay(make())).toMatchObject({
        kind: 'refused',
        reason,
        detail: expect.stringMatching(detail),
      })
      expect(paymentCount()).toBe(0)
      expect(usdg.tap.calls.some(({ method }) => method.startsWith('eth_send'))).toBe(false)
    })
  }

  for (const [where, config, name] of [
    [usdg, network, 'logs'],
    [usdc, reverting, 'reverts'],
  ] as const) {
    for (const method of ['eip3009', 'permit2'] as const) {
      test(`error: a nonce used before, ${method} of a token that ${name}, costs no gas`, async () => {
        const transfer = signTransfer(config, { method })
        await settleByOther(where.chain, transfer)
        const sent = where.tap.calls.length
        expect(await fixture.pay(transfer)).toMatchObject({
          kind: 'refused',
          reason:
            method === 'permit2' ? 'permit2_invalid_nonce' : 'invalid_exact_evm_nonce_already_used',
        })
        const methods = where.tap.calls.slice(sent).map(({ method }) => method)
        expect(methods.some((each) => each.startsWith('eth_send'))).toBe(false)
        expect(paymentCount()).toBe(0)
      })
    }
  }

  test('error: a fault of a node is unavailable, never a refusal, and nothing is written', async () => {
    for (const status of [500, 429, 403]) {
      usdg.tap.intercept = () => new Response('no', { status })
      expect((await fixture.pay(signTransfer(network))).kind).toBe('unavailable')
    }
    usdg.tap.intercept = ({ method }) =>
      method === 'eth_call' ? { error: { code: -32000, message: 'header not found' } } : undefined
    expect((await fixture.pay(signTransfer(network))).kind).toBe('unavailable')
    expect(paymentCount()).toBe(0)
  })

  test("error: payments in progress above the payer's balance are unavailable", async () => {
    await setAutomine(usdg.chain, false)
    try {
      const half = { amountAtomic: 6_000_000_000n, from: 5 }
      const first = fixture.pay(signTransfer(network, half))
      await until(() => paymentCount() === 1)
      expect(await fixture.pay(signTransfer(network, half))).toMatchObject({
        kind: 'unavailable',
        detail: 'Other payments of this payer are under way; send the same credential again.',
      })
      expect((await mineWhile(usdg.chain, first)).kind).toBe('confirmed')
    } finally {
      await setAutomine(usdg.chain, true)
    }
  })
})

describe('settled externally', () => {
  for (const [where, config, name] of [
    [usdg, network, 'logs'],
    [usdc, reverting, 'reverts'],
  ] as const) {
    for (const method of ['eip3009', 'permit2'] as const) {
      test(`an external settlement before our broadcast counts for a bound credential (${method}, ${name})`, async () => {
        const transfer = signTransfer(config, { method })
        const hash = await settleByOther(where.chain, transfer)
        expect(await fixture.pay(transfer, { bound: true })).toMatchObject({
          kind: 'confirmed',
          payment: { transaction: hash, state: 'confirmed' },
        })
      })

      test(`an external settlement after our simulation counts, bound or not (${method}, ${name})`, async () => {
        // The chain's clock is behind ours, by a slot or by a host's error.
        const receivedAt = Date.now() + 4_000
        const transfer = signTransfer(config, { method })
        let hash: Hex | undefined
        where.tap.intercept = async ({ method: called }) => {
          if (called !== 'eth_sendRawTransactionSync' || hash) return undefined
          hash = await settleByOther(where.chain, transfer)
          return undefined
        }
        expect(await fixture.pay(transfer, {}, { receivedAt })).toMatchObject({
          kind: 'confirmed',
          payment: { transaction: hash, state: 'confirmed' },
        })
        expect(paymentCount()).toBe(1)
      })
    }
  }

  for (const method of ['eip3009', 'permit2'] as const) {
    test(`error: a nonce that was used for another payee beside an equal Transfer does not count (${method})`, async () => {
      const transfer = signTransfer(network, { method })
      const { nonce } = transfer
      const toOther = signTransfer(network, { method, nonce, payee: account(8).address })
      const beside = signTransfer(network, { method })
      const both = Multicall.aggregate([Transfer.call(toOther), Transfer.call(beside)])
      const [receipt] = await execute(usdg.chain, [
        { from: account(8).address, ...both, gas: 900_000n },
      ])
      const moved = receipt?.logs.filter(({ topics }) => topics[0] === Receipt.transferTopic)
      expect(moved).toHaveLength(2)
      expect((await fixture.pay(transfer, { bound: true })).kind).toBe('refused')
      // Inside aggregate3 the right call is recognised.
      expect(await fixture.pay(beside, { bound: true })).toMatchObject({
        kind: 'confirmed',
        payment: { transaction: receipt?.transactionHash ?? '0x' },
      })
    })
  }

  test('error: a settlement older than the request does not count, whatever a stale node reported', async () => {
    const transfer = signTransfer(reverting)
    await settleByOther(usdc.chain, transfer)
    // Like a lagging node, it answers the simulation for another, unused nonce.
    const other = Transfer.call(signTransfer(reverting))
    usdc.tap.intercept = ({ method, params }) => {
      const [call] = params as [{ data?: string }]
      if (method !== 'eth_call' || !call.data?.includes(transfer.nonce.slice(2))) return undefined
      usdc.tap.intercept = undefined
      return forwardWith(usdc.chain.url, call, transfer, other)
    }
    const outcome = await fixture.pay(transfer, {}, { receivedAt: Date.now() + 10_000 })
    expect(outcome).toMatchObject({
      kind: 'dead',
      reason: 'invalid_exact_evm_nonce_already_used',
      payment: { state: 'reverted' },
    })
  })

  test('error: a cancelled authorization is refused for good', async () => {
    const transfer = signTransfer(network, { method: 'permit2' })
    const word = BigInt(transfer.nonce) >> 8n
    const mask = 1n << (BigInt(transfer.nonce) & 0xffn)
    let done = false
    usdg.tap.intercept = async ({ method }) => {
      if (method !== 'eth_sendRawTransactionSync' || done) return undefined
      done = true
      await execute(usdg.chain, [
        {
          from: account(1).address,
          to: '0x000000000022D473030F116dDEE9F6B43aC78BA3',
          // invalidateUnorderedNonces(uint256,uint256)
          data: `0x3ff9dcb1${hexWord(word)}${hexWord(mask)}`,
        },
      ])
      return undefined
    }
    expect(await fixture.pay(transfer, { bound: true })).toMatchObject({
      kind: 'dead',
      reason: 'permit2_invalid_nonce',
      payment: { state: 'reverted' },
    })
  })
})

describe('a failed transaction', () => {
  test('a failed transaction leaves the payment reverted, and the same credential pays later', async () => {
    const transfer = signTransfer(network, { from: 4, amountAtomic: 1_000n })
    let done = false
    usdg.tap.intercept = async ({ method }) => {
      if (method !== 'eth_sendRawTransactionSync' || done) return undefined
      done = true
      await setPaused(true)
      return undefined
    }
    const outcome = await fixture.pay(transfer)
    expect(outcome).toMatchObject({
      kind: 'reverted',
      reason: 'invalid_exact_evm_transaction_failed',
      payment: { state: 'reverted' },
    })
    if (outcome.kind !== 'reverted') throw new Error(outcome.kind)
    const { payment } = outcome
    const resume = () => fixture.settlement.resume(payment, transfer, { waitMs: 120_000 })
    expect(await resume()).toMatchObject({
      kind: 'reverted',
      reason: 'invalid_exact_evm_transaction_simulation_failed',
    })
    await setPaused(false)
    expect(await resume()).toMatchObject({
      kind: 'confirmed',
      payment: { id: payment.id, state: 'confirmed' },
    })
    expect(await resume()).toMatchObject({ kind: 'confirmed' })
  })
})

function hexWord(value: bigint): string {
  return value.toString(16).padStart(64, '0')
}

async function setPaused(value: boolean): Promise<void> {
  // setPaused(bool)
  const data: Hex = `0x16c38b3c${hexWord(value ? 1n : 0n)}`
  await execute(usdg.chain, [{ from: account(9).address, to: network.asset.address, data }])
}

function mintTo(holder: Hex, amountAtomic: bigint) {
  // mint(address,uint256)
  const data: Hex = `0x40c10f19${holder.slice(2).toLowerCase().padStart(64, '0')}${hexWord(amountAtomic)}`
  return { from: account(9).address, to: network.asset.address, data }
}

/** Sends the call with the settling calldata of another transfer. */
async function forwardWith(
  url: string,
  call: { data?: string },
  transfer: Transfer.Transfer,
  other: { data: Hex },
): Promise<unknown> {
  const mineData = Transfer.call(transfer).data.slice(2)
  const otherNonce = other.data.slice(10 + 5 * 64, 10 + 6 * 64)
  const data = call.data
    ?.replace(mineData, other.data.slice(2))
    .replaceAll(transfer.nonce.slice(2), otherNonce)
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      jsonrpc: '2.0',
      id: 1,
      method: 'eth_call',
      params: [{ ...call, data }, 'latest'],
    }),
  })
  return { result: ((await response.json()) as { result: string }).result }
}
