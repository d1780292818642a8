import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { type Address, encodeFunctionData, parseAbi } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import type { Id } from '../../src/protocol/Network'
import { setAutomine } from '../harness/chains'
import {
  type Answer,
  type Body,
  charging,
  type Made,
  makeBody,
  post,
} from '../harness/facilitation'
import { payee, type Shop, startShop } from '../harness/shop'

let shop: Shop
beforeAll(async () => {
  shop = await startShop({ env: { DESK_KEY: account(3).privateKey } })
})
afterAll(() => shop?.stop())

const base: Id = 'eip155:8453'
const robinhood: Id = 'eip155:4663'

function networkOf(id: Id) {
  const network = shop.config.networks.find((each) => each.id === id)
  if (network === undefined) throw new Error(`no ${id}`)
  return network
}
const make = (id: Id, made?: Made) => makeBody(networkOf(id), made)
const verify = (body: unknown) => post(`${shop.url}/verify`, body)
const settle = (body: unknown) => post(`${shop.url}/settle`, body)

const token = parseAbi([
  'function mint(address to, uint256 value)',
  'function transfer(address to, uint256 value) returns (bool)',
])

const kinds: readonly [Id, 'eip3009' | 'permit2'][] = [
  [base, 'eip3009'],
  [robinhood, 'eip3009'],
  [robinhood, 'permit2'],
  ['eip155:84532', 'eip3009'],
]

describe('supported', () => {
  test('/supported lists the networks that settle now, and every relayer, but not the desk', async () => {
    const response = await fetch(`${shop.url}/supported`)
    expect(response.status).toBe(200)
    expect(response.headers.get('cache-control')).toBe('public, max-age=5')
    const json = (await response.json()) as { kinds: unknown; signers: unknown }
    const networks = ['eip155:4663', 'eip155:8453', 'eip155:84532']
    const kinds = ['exact', 'batch-settlement'].flatMap((scheme) =>
      networks.map((network) => ({ x402Version: 2, scheme, network })),
    )
    const version1 = { x402Version: 1, scheme: 'exact' }
    const named = ['base', 'base-sepolia'].map((network) => ({ ...version1, network }))
    expect(json.kinds).toEqual([...kinds, ...named])
    expect(json.signers).toEqual({ 'eip155:*': [account(0).address] })
    const prefixed = await fetch(`${shop.url}/facilitator/supported`)
    expect(await prefixed.json()).toEqual(json)
  })
})

test('attack: without API keys a buyer cannot spend its ceiling of upto by a charge of its own', async () => {
  const body = await make(base, { scheme: 'upto' })
  const rows = shop.counts()
  const verified = await verify(body)
  expect([verified.status, verified.json.invalidReason]).toEqual([200, 'unsupported_scheme'])
  for (const charge of [0, 1, 5000]) {
    const { status, json } = await settle(charging(body, charge))
    expect([status, json.errorReason]).toEqual([200, 'unsupported_scheme'])
  }
  expect(shop.counts()).toEqual(rows)
})

describe('verify', () => {
  for (const [id, method] of kinds) {
    test(`good ${method} on ${id} is valid, in one call, and writes nothing`, async () => {
      const body = await make(id, { method })
      const [rows, calls] = [shop.counts(), shop.calls()]
      const { status, json } = await verify(body)
      expect(status).toBe(200)
      expect(json).toEqual({ isValid: true, payer: account(1).address })
      expect(shop.calls() - calls).toBe(1)
      expect(shop.counts()).toEqual(rows)
    })
  }

  test('an invalid signature costs one call and is reported before any other fault', async () => {
    const body = await make(base, {
      from: account(2).local(),
      payer: account(1).address,
      requirements: { payTo: account(8).address, amount: '7' },
    })
    const calls = shop.calls()
    expect((await verify(body)).json.invalidReason).toBe('payee_not_allowed')
    expect(shop.calls() - calls).toBe(0)
    body.paymentRequirements.payTo = payee
    const { json } = await verify(body)
    expect(json).toMatchObject({ isValid: false, invalidReason: 'invalid_exact_evm_signature' })
    expect(shop.calls() - calls).toBe(1)
  })
})

describe('settle', () => {
  for (const [id, method] of kinds) {
    test(`${method} on ${id} moves the money once`, async () => {
      const body = await make(id, { method })
      const before = await shop.balance(id, payee)
      const { status, json } = await settle(body)
      expect(status).toBe(200)
      expect(json).toEqual({
        success: true,
        payer: account(1).address,
        transaction: expect.stringMatching(/^0x[0-9a-f]{64}$/),
        network: id,
        amount: '5000',
      })
      expect((await shop.balance(id, payee)) - before).toBe(5_000n)
      const again = await settle(body)
      const reason =
        method === 'permit2' ? 'permit2_invalid_nonce' : 'invalid_exact_evm_nonce_already_used'
      expect(again.status).toBe(200)
      expect(again.json).toMatchObject({
        success: false,
        errorReason: reason,
        transaction: '',
        errorMessage: expect.stringContaining(String(json.transaction)),
        network: id,
        payer: account(1).address,
      })
      expect((await verify(body)).json).toMatchObject({ isValid: false, invalidReason: reason })
      expect((await shop.balance(id, payee)) - before).toBe(5_000n)
    })
  }

  test('of ten concurrent calls exactly one succeeds, also after a restart', async () => {
    const body = await make(base)
    const answers = await Promise.all(Array.from({ length: 10 }, () => settle(body)))
    expect(answers.map(({ status }) => status)).toEqual(new Array(10).fill(200))
    expect(successes(answers)).toBe(1)
    const { transaction } = answers.find(({ json }) => json.success === true)?.json ?? {}
    // A refusal has no transaction, as the text of x402 says. Its message names that of the success.
    const told = answers.map(({ json }) => json.transaction || json.errorMessage)
    for (const text of told) expect(text).toContain(String(transaction))
    expect(answers.filter(({ json }) => json.transaction === '')).toHaveLength(9)
    await shop.restart()
    const later = [await settle(body), await settle(body)]
    expect(successes(later)).toBe(0)
    expect(later[0]?.json.errorMessage).toContain(String(transaction))
  })

  test('a pending settlement is reported as pending, and succeeds for a repeated call', async () => {
    const body = await make(base, { requirements: { maxTimeoutSeconds: 2 } })
    const chain = shop.chains[base]
    if (chain === undefined) throw new Error('no chain')
    await setAutomine(chain, false)
    let pending: Answer
    try {
      pending = await settle(body)
      expect(pending.status).toBe(200)
      expect(pending.json).toMatchObject({
        success: false,
        status: 'pending',
        errorReason: 'settlement_pending',
        transaction: expect.stringMatching(/^0x[0-9a-f]{64}$/),
        network: base,
        payer: account(1).address,
      })
      // A server that verifies before it settles must not request a second payment from its buyer.
      expect((await verify(body)).json).toMatchObject({ isValid: true })
      await expectRefused(body, 'pending')
    } finally {
      await setAutomine(chain, true)
      await chain.rpc('anvil_mine', ['0x1'])
    }
    body.paymentRequirements.maxTimeoutSeconds = 30
    const { json } = await settle(body)
    expect(json).toMatchObject({ success: true, transaction: pending.json.transaction as string })
    expect((await settle(body)).json).toMatchObject({ success: false })
  })

  test('a settlement that is pending across a restart succeeds for the first call after it', async () => {
    const body = await make(base, { requirements: { maxTimeoutSeconds: 2 } })
    const chain = shop.chains[base]
    if (chain === undefined) throw new Error('no chain')
    await setAutomine(chain, false)
    expect((await settle(body)).json).toMatchObject({ status: 'pending' })
    const restarting = shop.restart()
    await setAutomine(chain, true)
    await chain.rpc('anvil_mine', ['0x1'])
    await restarting
    body.paymentRequirements.maxTimeoutSeconds = 30
    const answers = await Promise.all([settle(body), settle(body), settle(body)])
    expect(successes(answers)).toBe(1)
  })

  test('a transfer that failed on chain may be tried again by the same call', async () => {
    const payer = privateKeyToAccount(`0x${'55'.repeat(32)}`)
    const { asset } = networkOf(base)
    const chain = shop.chains[base]
    const tap = shop.taps[base]
    if (chain === undefined || tap === undefined) throw new Error('no chain')
    await chain.rpc('anvil_impersonateAccount', [payer.address])
    await chain.rpc('anvil_setBalance', [payer.address, '0xde0b6b3a7640000'])
    const move = (from: Address, functionName: 'mint' | 'transfer', to: Address) =>
      execute(chain, [
        {
          from,
          to: asset.address,
          data: encodeFunctionData({ abi: token, functionName, args: [to, 5_000n] }),
        },
      ])
    await move(account(9).address, 'mint', payer.address)
    const body = await make(base, { from: payer })
    tap.intercept = async ({ method }) => {
      if (!method.startsWith('eth_sendRawTransaction')) return undefined
      tap.intercept = undefined
      await move(payer.address, 'transfer', account(8).address)
      return undefined
    }
    const failed = await settle(body)
    expect(failed.json).toMatchObject({
      success: false,
      errorReason: 'invalid_exact_evm_transaction_failed',
      transaction: expect.stringMatching(/^0x/),
    })
    expect((await verify(body)).json.invalidReason).toBe('invalid_exact_evm_insufficient_balance')
    await move(account(8).address, 'transfer', payer.address)
    expect((await verify(body)).json).toMatchObject({ isValid: true })
    const other = structuredClone(body)
    other.paymentRequirements.extra.more = true
    expect((await verify(other)).json.isValid).toBe(false)
    expect((await settle(other)).json.success).toBe(false)
    expect(successes([await settle(body), await settle(body)])).toBe(1)
  })

  test('attack 4: money that is settled or pending for one caller pays nothing for another', async () => {
    const body = await make(robinhood, { method: 'permit2', amountAtomic: 1n })
    expect((await settle(body)).json).toMatchObject({ success: true })
    await expectRefused(body, 'settled')
  })
})

const successes = (answers: readonly Answer[]) =>
  answers.filter(({ json }) => json.success === true).length

/** The same signature under other requirements. */
async function expectRefused(body: Body, when: string) {
  const before = shop.counts()
  const others: Partial<Body['paymentRequirements']>[] = [
    { amount: '1000000' },
    { payTo: shop.config.merchants[0]?.payout === payee ? account(6).address : payee },
    { asset: networkOf('eip155:84532').asset.address },
    { network: 'eip155:84532' },
    { extra: { ...body.paymentRequirements.extra, name: 'Another' } },
    { extra: { ...body.paymentRequirements.extra, more: true } },
  ]
  for (const change of others) {
    const changed = structuredClone(body)
    Object.assign(changed.paymentRequirements, change)
    const { json } = await settle(changed)
    expect([when, change, json.success]).toEqual([when, change, false])
    expect(json.status).toBeUndefined()
    const verdict = await verify(changed)
    expect(verdict.json.isValid).toBe(false)
  }
  expect(shop.counts()).toEqual(before)
}
