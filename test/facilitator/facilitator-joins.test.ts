import { afterAll, afterEach, beforeAll, describe, expect, test } from 'bun:test'
import type { Hex } from 'viem'
import { account } from '../../src/demo/accounts'
import { claimMoney } from '../../src/paywall/checkout'
import { setAutomine } from '../harness/chains'
import { type Answer, type Body, type Made, makeBody, post } from '../harness/facilitation'
import { type Shop, startShop } from '../harness/shop'
import { tamper } from '../harness/test-ledger'
import { until } from '../harness/world'

/** Several calls with one authorization, one of which is being settled. */

const base = 'eip155:8453'
let shop: Shop
beforeAll(async () => {
  shop = await startShop()
})
afterAll(() => shop?.stop())
afterEach(async () => {
  if (shop.taps[base]) shop.taps[base].intercept = undefined
  await mine()
  expect(await shop.app.reload(shop.config)).toEqual([])
})

function make(made?: Made) {
  const network = shop.config.networks.find(({ id }) => id === base)
  if (network === undefined) throw new Error('no network')
  return makeBody(network, made)
}

const settle = (body: unknown) => post(`${shop.url}/settle`, body)
const withWait = (body: Body, seconds: number): Body => ({
  ...body,
  paymentRequirements: { ...body.paymentRequirements, maxTimeoutSeconds: seconds },
})

function chainOf() {
  const chain = shop.chains[base]
  if (chain === undefined) throw new Error('no chain')
  return chain
}
const hold = () => setAutomine(chainOf(), false)
async function mine() {
  await setAutomine(chainOf(), true)
  await chainOf().rpc('anvil_mine', ['0x1'])
}

/** Starts a settlement, and continues when it is written. */
async function begin(body: Body): Promise<{ answer: Promise<Answer> }> {
  const { payments = 0 } = shop.counts()
  const answer = settle(body)
  await until('it is written', () => (shop.counts().payments ?? 0) > payments)
  return { answer }
}

/** Delays the first call of a method until `release`. */
async function holdCall(method: string, act: () => Promise<Answer>) {
  const tap = shop.taps[base]
  if (tap === undefined) throw new Error('no tap')
  const reached = Promise.withResolvers<void>()
  const released = Promise.withResolvers<void>()
  tap.intercept = async (call) => {
    if (call.method !== method) return undefined
    tap.intercept = undefined
    reached.resolve()
    await released.promise
    return undefined
  }
  const answer = act()
  await reached.promise
  return { answer, release: released.resolve }
}

const successes = (answers: readonly Answer[]) =>
  answers.filter(({ json }) => json.success === true).length
const used = 'invalid_exact_evm_nonce_already_used'
const unsigned = 'invalid_exact_evm_signature'

describe('a reload while a settlement is in progress', () => {
  test('the same call again waits for the same transaction, another one is refused', async () => {
    const body = await make()
    await hold()
    const first = await begin(body)
    expect(await shop.app.reload(shop.config)).toEqual([])
    const pending = await settle(withWait(body, 0.2))
    expect(pending.json).toMatchObject({ success: false, status: 'pending' })
    const other = structuredClone(body)
    other.paymentRequirements.extra.more = true
    expect((await settle(other)).json).toMatchObject({ success: false, errorReason: used })
    const second = settle(body)
    expect(await shop.app.reload(shop.config)).toEqual([])
    const third = settle(body)
    await mine()
    const answers = await Promise.all([first.answer, second, third])
    expect(successes(answers)).toBe(1)
    expect(answers.filter(({ json }) => json.errorReason === used)).toHaveLength(2)
    for (const { json } of answers)
      expect(json.transaction || json.errorMessage).toContain(pending.json.transaction as Hex)
    expect((await settle(body)).json).toMatchObject({ success: false, errorReason: used })
  })

  test('attack: a call that is rebuilt from the chain does not get the success of a caller', async () => {
    const body = await make()
    await hold()
    const first = await begin(withWait(body, 0.2))
    expect((await first.answer).json).toMatchObject({ status: 'pending' })
    await mine()
    // The chain has the signed values, and not the bytes that the buyer sent.
    const rebuilt = structuredClone(body)
    rebuilt.paymentPayload.resource = { ...rebuilt.paymentPayload.resource, description: 'x' }
    expect((await settle(rebuilt)).json).toMatchObject({ success: false, errorReason: used })
    expect((await settle(body)).json).toMatchObject({ success: true })
  })

  test('a reload to a policy that refuses such payments ends none in progress', async () => {
    const body = await make()
    await hold()
    const first = await begin(withWait(body, 2))
    expect((await first.answer).json).toMatchObject({ status: 'pending' })
    const { facilitator } = shop.config
    for (const changes of [
      { minAmountAtomic: 1_000_000n },
      { payTo: [account(9).address] },
      { assets: ['0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168'] as const },
    ]) {
      const stricter = { ...shop.config, facilitator: { ...facilitator, ...changes } }
      expect(await shop.app.reload(stricter)).toEqual([])
      expect((await settle(withWait(body, 0.1))).json).toMatchObject({ status: 'pending' })
      expect((await post(`${shop.url}/verify`, body)).json).toMatchObject({ isValid: true })
      expect((await post(`${shop.url}/verify`, await make())).json.isValid).toBe(false)
    }
    await mine()
    expect((await settle(body)).json).toMatchObject({ success: true })
    expect((await settle(body)).json.success).toBe(false)
  })

  test('a stop after a reload waits for the calls that began before', async () => {
    const body = await make()
    await hold()
    const first = await begin(body)
    expect(await shop.app.reload(shop.config)).toEqual([])
    const restarting = shop.restart()
    await mine()
    expect((await first.answer).json).toMatchObject({ success: true })
    await restarting
  })
})

test('a call that joins one with a shorter wait still has its own wait', async () => {
  const body = await make()
  await hold()
  // Long enough to be sent on a busy machine.
  const short = await begin(withWait(body, 2))
  const long = settle(body)
  expect((await short.answer).json).toMatchObject({ status: 'pending' })
  await mine()
  expect((await long).json).toMatchObject({ success: true })
})

describe('a call with a forged signature for the same money', () => {
  const forgers: readonly [string, (body: Body) => void][] = [
    ['the same requirements', () => undefined],
    [
      'other requirements',
      ({ paymentRequirements }) => {
        paymentRequirements.extra.more = true
      },
    ],
  ]
  for (const [index, [what, change]] of forgers.entries()) {
    test(`attack: a forged call before the valid one does not stop it, under ${what}`, async () => {
      const payer = account(4 + index)
      const body = await make({ from: payer.local() })
      const { nonce } = body.paymentPayload.payload.authorization as { nonce: Hex }
      const { validBefore } = body.paymentPayload.payload.authorization as { validBefore: string }
      const forged = await make({
        from: account(2).local(),
        payer: payer.address,
        nonce,
        validBefore: BigInt(validBefore),
      })
      change(forged)
      const front = await holdCall('eth_getCode', () => settle(forged))
      const good = settle(body)
      front.release()
      expect((await front.answer).json).toMatchObject({ success: false, errorReason: unsigned })
      expect((await good).json).toMatchObject({ success: true })
    })
  }

  test('error: a call that waits too long for a forged one is asked to retry, and nothing is sent', async () => {
    const payer = account(3)
    const body = await make({ from: payer.local() })
    const { nonce } = body.paymentPayload.payload.authorization as { nonce: Hex }
    const forged = await make({ from: account(2).local(), payer: payer.address, nonce })
    const rows = shop.counts()
    const front = await holdCall('eth_getCode', () => settle(forged))
    const { status, json } = await settle(withWait(body, 0.1))
    expect([status, json.success]).toEqual([503, undefined])
    front.release()
    expect((await front.answer).json.success).toBe(false)
    expect(shop.counts()).toEqual(rows)
    expect((await settle(body)).json).toMatchObject({ success: true })
  })

  test('attack: a forged call after the valid one does not join it', async () => {
    const body = await make()
    const forged = structuredClone(body)
    const { signature } = await make({ from: account(2).local() }).then(
      (made) => made.paymentPayload.payload,
    )
    forged.paymentPayload.payload.signature = signature
    const good = await holdCall('eth_call', () => settle(body))
    const behind = settle(forged)
    good.release()
    expect((await good.answer).json).toMatchObject({ success: true })
    expect((await behind).json).toMatchObject({ success: false, errorReason: unsigned })
  })
})

test('a payment that a reorganisation removes before its success is pending, not used', async () => {
  const body = await make()
  const { settlement } = shop.app
  const { handOver } = settlement
  settlement.handOver = (id) => {
    settlement.handOver = handOver
    tamper(
      shop.dataDir,
      `UPDATE payments SET state = 'broadcast', log_index = NULL, block_number = NULL,
       confirmed_at = NULL WHERE id = ?`,
      [id],
    )
    return handOver(id)
  }
  expect((await settle(body)).json).toMatchObject({ success: false, status: 'pending' })
  expect((await settle(body)).json).toMatchObject({ success: true })
})

test('error: a call for money that another product has claimed gets no result', async () => {
  const body = await make()
  const { from: payer, nonce } = body.paymentPayload.payload.authorization as {
    from: `0x${string}`
    nonce: Hex
  }
  const { asset } = body.paymentRequirements
  const claim = claimMoney(shop.app.claims, { network: base, asset, payer, nonce })
  const { status, json } = await settle(body)
  expect([status, json.success]).toEqual([503, undefined])
  claim?.release()
  expect((await settle(body)).json).toMatchObject({ success: true })
})
