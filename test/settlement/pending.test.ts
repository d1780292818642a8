import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { encodeFunctionData, type Hex, numberToHex, parseAbi } from 'viem'
import { account } from '../../src/demo/accounts'
import { execute, mine } from '../../src/demo/chains'
import { settlementOf } from '../harness/buyer'
import { setAutomine } from '../harness/chains'
import {
  openConnection,
  payee,
  type Shop,
  setSettleWait,
  sign,
  startShop,
  type Terms,
  untilEnded,
  untilFree,
} from '../harness/shop'
import { until } from '../harness/world'

let shop: Shop
beforeAll(async () => {
  // Shorter than the file allows, because every pending answer waits for it.
  shop = await startShop({
    adjust: (config) => ({ ...config, service: { ...config.service, settleWaitSeconds: 1.5 } }),
  })
})
afterAll(() => shop.stop())
beforeEach(() => {
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
})
afterEach(async () => {
  for (const tap of Object.values(shop.taps)) tap.intercept = undefined
  for (const chain of Object.values(shop.chains)) await setAutomine(chain, true)
})

const item = () => `${shop.url}/m/shop/item`
const x402: Terms = { scheme: 'x402-eip3009' }
const base = 'eip155:8453'

function chainOf(network: string) {
  const chain = shop.chains[network as typeof base]
  if (chain === undefined) throw new Error(`no ${network}`)
  return chain
}

/** Resolves when the node has this many transactions waiting. */
function inPool(network: string, count: number): Promise<void> {
  return until('the transaction waits in the pool', async () => {
    const status = (await chainOf(network).rpc('txpool_status', [])) as { pending: Hex }
    return Number(status.pending) >= count
  })
}

/** Repeats the request until the transfer is no longer pending. */
async function answer(credential: Record<string, string>): Promise<Response> {
  let response = await fetch(item(), { headers: credential })
  await until('the transfer is decided', async () => {
    if (response.status === 503) response = await fetch(item(), { headers: credential })
    return response.status !== 503
  })
  return response
}

const waiting: [name: string, network: typeof base | 'eip155:4663', terms: Terms][] = [
  ['mpp', base, {}],
  ['mpp permit2', 'eip155:4663', { scheme: 'mpp-permit2' }],
  ['x402 eip3009', base, x402],
  ['x402 permit2', 'eip155:4663', { scheme: 'x402-permit2' }],
]

describe('a slow transfer', () => {
  for (const [name, network, terms] of waiting)
    test(`${name} is 409 in flight, 503 pending, then answered, and settles once`, async () => {
      const credential = await sign(item(), terms)
      const before = await shop.balance(network, payee)
      const payments = shop.counts().payments ?? 0
      await setAutomine(chainOf(network), false)
      // Long enough for the second request to arrive while the first one waits.
      await setSettleWait(shop, 4)
      const first = fetch(item(), { headers: credential })
      await inPool(network, 1)

      const meanwhile = await fetch(item(), { headers: credential })
      expect(meanwhile.status).toBe(409)
      expect(meanwhile.headers.get('retry-after')).toBe('1')
      expect(await meanwhile.json()).toMatchObject({ code: 'payment-in-progress' })

      const pending = await first
      await setSettleWait(shop, 1.5)
      expect(pending.status).toBe(503)
      expect(pending.headers.get('retry-after')).toBe('2')
      expect(pending.headers.has('www-authenticate')).toBe(false)
      expect(pending.headers.has('payment-required')).toBe(false)
      expect(pending.headers.has('payment-receipt')).toBe(false)
      const body = (await pending.json()) as { transaction: Hex }
      expect(body).toMatchObject({
        type: 'http://localhost:4020/problems/settlement-pending',
        status: 503,
        code: 'settlement-pending',
        network,
      })
      expect(body.transaction).toMatch(/^0x[0-9a-f]{64}$/)
      if (name.startsWith('x402')) {
        expect(settlementOf(pending)).toEqual({
          success: false,
          errorReason: 'settlement_pending',
          transaction: body.transaction,
          network,
          payer: account(1).address,
        })
        expect(pending.headers.get('x-payment-response')).toBe(
          pending.headers.get('payment-response'),
        )
      }
      expect(shop.upstream.requests).toHaveLength(0)

      await mine(chainOf(network))
      // The payment is stored: neither the age of the challenge nor that of the authorization
      // counts.
      shop.advance(400_000)
      const answered = await answer(credential)
      shop.advance(-400_000)
      expect(answered.status).toBe(200)
      expect(await answered.json()).toEqual({ ok: true })
      expect(shop.counts().payments).toBe(payments + 1)
      expect(await shop.balance(network, payee)).toBe(before + 5000n)
      expect(shop.upstream.requests).toHaveLength(1)
      await untilEnded(shop)
      const again = () => fetch(item(), { headers: credential })
      expect((await untilFree(again)).status).toBe(402)
    })

  test('the credential for another request is 409, never 402', async () => {
    for (const terms of [{}, x402] as Terms[]) {
      const credential = await sign(item(), terms)
      await setAutomine(chainOf(base), false)
      expect((await fetch(item(), { headers: credential })).status).toBe(503)
      const other = await fetch(`${item()}?other=1`, { headers: credential })
      expect(other.status).toBe(409)
      expect(await other.json()).toMatchObject({ code: 'payment-mismatch' })
      expect(other.headers.has('www-authenticate')).toBe(false)
      await setAutomine(chainOf(base), true)
      await mine(chainOf(base))
      expect((await answer(credential)).status).toBe(200)
    }
  })

  test('a pending payment is continued after a restart of the gateway', async () => {
    const credential = await sign(item(), x402)
    await setAutomine(chainOf(base), false)
    expect((await fetch(item(), { headers: credential })).status).toBe(503)
    const restarted = shop.restart()
    await setAutomine(chainOf(base), true)
    await mine(chainOf(base))
    await restarted
    const answered = await answer(credential)
    expect(answered.status).toBe(200)
    expect(settlementOf(answered)).toMatchObject({ success: true })
    const [row] = shop.rows("SELECT count(*) AS n FROM transactions WHERE kind <> 'cancel'")
    expect(row?.n).toBe(shop.counts().payments)
  })

  test('a buyer that disconnects while the transfer is pending gets its answer later', async () => {
    const credential = await sign(item(), x402)
    await setAutomine(chainOf(base), false)
    const connection = openConnection(item(), credential)
    await inPool(base, 1)
    await connection.leave()
    await setAutomine(chainOf(base), true)
    await mine(chainOf(base))
    await until('it is answered', async () => {
      const { status } = await fetch(item(), { headers: credential })
      expect([200, 409, 503]).toContain(status)
      return status === 200
    })
    expect(shop.upstream.requests).toHaveLength(1)
  })
})

describe('a transfer that fails after it was sent', () => {
  const erc20 = parseAbi(['function transfer(address to, uint256 value) returns (bool)'])
  const token = '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913'

  /** Puts a transaction of an account before those that wait in the pool, and mines both. */
  async function overtake(from: number, data: Hex): Promise<void> {
    await chainOf(base).rpc('eth_sendTransaction', [
      {
        from: account(from).address,
        to: token,
        data,
        gas: numberToHex(200_000),
        maxFeePerGas: numberToHex(50_000_000_000),
        maxPriorityFeePerGas: numberToHex(40_000_000_000),
      },
    ])
    await inPool(base, 2)
    await mine(chainOf(base))
  }

  test('a failed transfer is 503 while it may still succeed, and pays when it does', async () => {
    const buyer = account(4)
    const balance = await shop.balance(base, buyer.address)
    const credential = await sign(item(), { ...x402, buyer: 4 })
    await setAutomine(chainOf(base), false)
    const first = fetch(item(), { headers: credential })
    await inPool(base, 1)
    const away = encodeFunctionData({
      abi: erc20,
      functionName: 'transfer',
      args: [account(5).address, balance],
    })
    await overtake(4, away)
    let failed = await first
    let body = (await failed.json()) as Record<string, unknown>
    await until('the transfer has failed', async () => {
      if (body.code !== 'settlement-pending') return true
      failed = await fetch(item(), { headers: credential })
      body = (await failed.json()) as Record<string, unknown>
      return false
    })
    expect(failed.status).toBe(503)
    expect(failed.headers.get('retry-after')).toBe('2')
    expect(failed.headers.has('www-authenticate')).toBe(false)
    expect(body).toMatchObject({
      code: 'settlement-reverted',
      transaction: expect.stringMatching(/^0x[0-9a-f]{64}$/),
    })
    expect(settlementOf(failed)).toMatchObject({ success: false, payer: buyer.address })

    await setAutomine(chainOf(base), true)
    const back = encodeFunctionData({
      abi: erc20,
      functionName: 'transfer',
      args: [buyer.address, balance],
    })
    await execute(chainOf(base), [{ from: account(5).address, to: token, data: back }])
    expect((await answer(credential)).status).toBe(200)
    expect(await shop.balance(base, buyer.address)).toBe(balance - 5000n)
  })

  test('error: a failed transfer is 402 once the chain proves that it cannot pay', async () => {
    const credential = await sign(item(), { ...x402, buyer: 4 })
    const { payload } = JSON.parse(atob(credential['payment-signature'] ?? ''))
    const cancel = await cancellation(payload.authorization.nonce)
    const balance = await shop.balance(base, account(4).address)
    await setAutomine(chainOf(base), false)
    const first = fetch(item(), { headers: credential })
    await inPool(base, 1)
    await overtake(4, cancel)
    // The chain is read twice before a used nonce counts as not paid.
    await first
    const failed = await answer(credential)
    expect(failed.status).toBe(402)
    expect(await failed.json()).toMatchObject({ code: 'invalid-challenge' })
    expect(settlementOf(failed)).toMatchObject({
      success: false,
      errorReason: 'invalid_exact_evm_nonce_already_used',
    })
    expect(await shop.balance(base, account(4).address)).toBe(balance)
    expect(shop.upstream.requests).toHaveLength(0)
  })

  async function cancellation(nonce: Hex): Promise<Hex> {
    const authorizer = account(4).address
    const signature = await account(4)
      .local()
      .signTypedData({
        domain: { name: 'USD Coin', version: '2', chainId: 8453, verifyingContract: token },
        types: {
          CancelAuthorization: [
            { name: 'authorizer', type: 'address' },
            { name: 'nonce', type: 'bytes32' },
          ],
        },
        primaryType: 'CancelAuthorization',
        message: { authorizer, nonce },
      })
    return encodeFunctionData({
      abi: parseAbi(['function cancelAuthorization(address, bytes32, bytes)']),
      args: [authorizer, nonce, signature],
    })
  }
})
