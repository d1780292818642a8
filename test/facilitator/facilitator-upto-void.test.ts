import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { Hex } from 'viem'
import type { Purpose } from '../../db/Payment'
import { open as openDatabase } from '../../db/sqlite/open'
import type { Config } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import * as Facilitation from '../../src/protocol/Facilitation'
import type { Id } from '../../src/protocol/Network'
import { countSql } from '../harness/costs'
import {
  type Answer,
  type Body,
  charging,
  type Made,
  makeBody,
  post,
} from '../harness/facilitation'
import { purposeOf } from '../harness/settlement'
import { payee, type Shop, type ShopOptions, startShop } from '../harness/shop'
import { isPostgres } from '../harness/test-ledger'
import { until } from '../harness/world'

/** A charge of nothing sends nothing, and the authorization can never be used again. */

const base: Id = 'eip155:8453'
const robinhood: Id = 'eip155:4663'
const used = 'permit2_invalid_nonce'

const shops: Shop[] = []
async function open(adjust: (config: Config) => Config, options: ShopOptions = {}): Promise<Shop> {
  const opened = await startShop({ adjust, ...options })
  shops.push(opened)
  return opened
}
const withFacilitator = (changes: Partial<Config['facilitator']>) => (config: Config) => ({
  ...config,
  facilitator: {
    ...config.facilitator,
    settlePerMinute: 1e6,
    verifyPerMinute: 1e6,
    uptoWithoutKeys: true,
    ...changes,
  },
})
let shop: Shop
const sql = countSql()
beforeAll(async () => {
  shop = await startShop({ adjust: withFacilitator({}), openDatabase: sql.openDatabase })
  shops.push(shop)
})
afterAll(async () => {
  for (const each of shops) await each.stop()
})

function networkOf(id: Id) {
  const network = shop.config.networks.find((each) => each.id === id)
  if (network === undefined) throw new Error(`no ${id}`)
  return network
}
const make = (made: Made = {}, id = base) => makeBody(networkOf(id), { scheme: 'upto', ...made })
const verify = (body: unknown) => post(`${shop.url}/verify`, body)
const settle = (body: unknown) => post(`${shop.url}/settle`, body)
const codeOf = ({ json }: Answer) => json.invalidReason ?? json.errorReason
const successes = (answers: readonly Answer[]) =>
  answers.filter(({ json }) => json.success === true)
const voids = () =>
  shop.rows("SELECT id, state, product, charge_atomic FROM authorizations WHERE state = 'void'")

function signedOf(body: Body) {
  return body.paymentPayload.payload.permit2Authorization as { nonce: string; deadline: string }
}
/** An `exact` payment with the same Permit2 nonce. */
function exactOf(body: Body) {
  const { nonce, deadline } = signedOf(body)
  const word: Hex = `0x${BigInt(nonce).toString(16).padStart(64, '0')}`
  return makeBody(networkOf(base), {
    method: 'permit2',
    nonce: word,
    validBefore: BigInt(deadline),
  })
}

async function expectUsed(body: Body) {
  const [rows, before] = [shop.counts(), await shop.balance(base, payee)]
  for (const charge of [0, 1, 5000]) {
    expect([charge, codeOf(await settle(charging(body, charge)))]).toEqual([charge, used])
  }
  expect(codeOf(await verify(body))).toBe(used)
  const exact = await exactOf(body)
  expect(codeOf(await verify(exact))).toBe(used)
  expect(codeOf(await settle(exact))).toBe(used)
  expect([shop.counts(), await shop.balance(base, payee)]).toEqual([rows, before])
}

describe('a charge of nothing', () => {
  test('a charge of nothing is a success without a transaction, and its money stays used, also after a restart', async () => {
    const body = await make()
    const [rows, before] = [shop.counts(), voids().length]
    const { status, json } = await settle(charging(body, 0))
    expect([status, json]).toEqual([
      200,
      { success: true, payer: account(1).address, transaction: '', network: base, amount: '0' },
    ])
    expect(shop.counts()).toEqual({ ...rows, authorizations: (rows.authorizations ?? 0) + 1 })
    expect(voids()).toHaveLength(before + 1)
    expect(voids()[before]).toMatchObject({ product: 'facilitator', charge_atomic: '0' })
    const metrics = await (await fetch(`${shop.url}/metrics`)).text()
    expect(metrics).toContain('facilitator_calls_total{operation="settle",answer="void"} 1')
    expect(shop.logged.filter((line) => line.includes('"answer":"void"'))).toHaveLength(1)
    await expectUsed(body)
    await shop.restart()
    await expectUsed(body)
  })

  // It counts statements and syncs of SQLite.
  test.skipIf(isPostgres)(
    'a charge of nothing is on the disk before its success, in one commit',
    async () => {
      const body = charging(await make(), 0)
      sql.reset()
      expect((await settle(body)).json).toMatchObject({ success: true })
      const { statements, commits, laterCommits } = sql.costs()
      expect(statements['insert authorizations']).toBe(1)
      expect([commits, laterCommits]).toEqual([1, 0])
    },
  )

  test('of concurrent charges of nothing and of something exactly one succeeds', async () => {
    for (const charges of [
      [0, 0, 0, 0, 0],
      [0, 5, 0, 5, 6],
      [5, 0, 6, 0, 0],
    ]) {
      const body = await make()
      const before = await shop.balance(base, payee)
      const answers = await Promise.all(charges.map((charge) => settle(charging(body, charge))))
      const [first, ...more] = successes(answers)
      expect(more).toEqual([])
      const charged = BigInt(String(first?.json.amount))
      expect((await shop.balance(base, payee)) - before).toBe(charged)
      await expectUsed(body)
    }
  })

  test('attack: a forged signature voids nothing', async () => {
    const body = await make()
    const { nonce, deadline } = signedOf(body)
    const forged = await make({
      from: account(2).local(),
      payer: account(1).address,
      nonce: `0x${BigInt(nonce).toString(16).padStart(64, '0')}`,
      validBefore: BigInt(deadline),
    })
    const rows = shop.counts()
    expect(codeOf(await settle(charging(forged, 0)))).toBe('invalid_permit2_signature')
    expect(shop.counts()).toEqual(rows)
    expect((await settle(charging(body, 3))).json).toMatchObject({ success: true, amount: '3' })
    // A forged signature does not show whether a nonce was used.
    expect(codeOf(await settle(charging(forged, 0)))).toBe('invalid_permit2_signature')
    const other = await make()
    await settle(charging(other, 0))
    const again = await make({
      from: account(2).local(),
      payer: account(1).address,
      nonce: `0x${BigInt(signedOf(other).nonce).toString(16).padStart(64, '0')}`,
    })
    for (const answer of [await verify(again), await settle(charging(again, 0))]) {
      expect(codeOf(answer)).toBe('invalid_permit2_signature')
    }
  })

  test('error: the ceiling must be covered, valid and for one of our relayers, as for verify', async () => {
    const rows = shop.counts()
    const refused: readonly [string, Body][] = [
      ['permit2_allowance_required', await make({ from: account(3).local() })],
      ['permit2_insufficient_balance', await make({ amountAtomic: 10n ** 15n })],
      ['permit2_deadline_expired', await make({ validBefore: 1n })],
      ['upto_facilitator_mismatch', await make({ facilitator: account(6).address })],
      ['amount_below_minimum', await make({ amountAtomic: 0n })],
      ['permit2_token_mismatch', await make({ domain: { verifyingContract: payee } })],
    ]
    for (const [code, body] of refused) {
      expect([code, codeOf(await settle(charging(body, 0)))]).toEqual([code, code])
    }
    expect(shop.counts()).toEqual(rows)
  })

  test('error: while the node fails nothing is voided, and the answer is no result', async () => {
    const body = await make()
    const rows = shop.counts()
    const tap = shop.taps[base]
    if (tap === undefined) throw new Error('no tap')
    tap.intercept = ({ method }) =>
      method === 'eth_call' ? new Response('down', { status: 502 }) : undefined
    try {
      const { status, json } = await settle(charging(body, 0))
      expect([status, json.code, json.success]).toEqual([503, 'not-ready', undefined])
    } finally {
      tap.intercept = undefined
    }
    expect(shop.counts()).toEqual(rows)
    expect((await settle(charging(body, 0))).json).toMatchObject({ success: true })
  })

  test('a caller that does not wait still gets the only success', async () => {
    const body = await make({ requirements: { maxTimeoutSeconds: 0 } })
    const { json } = await settle(charging(body, 0))
    expect(json).toMatchObject({ success: true, amount: '0' })
    await expectUsed(body)
  })
})

describe('gas and money', () => {
  test('attack: min_amount applies to every charge, also to one of nothing', async () => {
    const strict = withFacilitator({ minAmountAtomic: 100n })(shop.config)
    expect(await shop.app.reload(strict)).toEqual([])
    try {
      const [body, rows] = [await make(), shop.counts()]
      for (const charge of [0, 99]) {
        expect(codeOf(await settle(charging(body, charge)))).toBe('amount_below_minimum')
      }
      expect(codeOf(await verify(await make({ amountAtomic: 99n })))).toBe('amount_below_minimum')
      expect(shop.counts()).toEqual(rows)
      expect((await settle(charging(body, 100))).json).toMatchObject({ success: true })
    } finally {
      expect(await shop.app.reload(shop.config)).toEqual([])
    }
  })

  test('a spent gas budget stops charges, and a charge of nothing needs none', async () => {
    const before = shop
    shop = await open((config) => ({
      ...withFacilitator({})(config),
      networks: config.networks.map((network) => ({
        ...network,
        gasPerDayWei: { ...network.gasPerDayWei, facilitator: 0n },
      })),
    }))
    try {
      const body = await make()
      for (const answer of [await verify(body), await settle(charging(body, 1))]) {
        expect([answer.status, answer.json.code]).toEqual([503, 'not-ready'])
      }
      expect((await settle(charging(body, 0))).json).toMatchObject({ success: true })
    } finally {
      shop = before
    }
  })

  test('settle needs only the charge to be covered, verify needs the ceiling', async () => {
    const poor = account(2)
    const balance = await shop.balance(robinhood, poor.address)
    const body = await make({ from: poor.local(), amountAtomic: balance + 1n }, robinhood)
    expect(codeOf(await verify(body))).toBe('permit2_insufficient_balance')
    // What was served is paid for, as far as the payer signed it.
    const { json } = await settle(charging(body, 11))
    expect(json).toMatchObject({ success: true, amount: '11' })
    expect(await shop.balance(robinhood, poor.address)).toBe(balance - 11n)
  })
})

describe('API keys', () => {
  const key = 'k3y-of-a-resource-server'
  const hash = (text: string): Hex =>
    `0x${new Bun.CryptoHasher('sha256').update(text).digest('hex')}`
  const bearer = { authorization: `Bearer ${key}` }
  let keyed: Shop
  /** What a commit waits for before it is on the disk. */
  let disk: Promise<void> | undefined
  beforeAll(async () => {
    keyed = await open(
      withFacilitator({ payTo: 'any', apiKeyHashes: [hash(key), hash('another')] }),
      {
        openDatabase(from) {
          const db = openDatabase(from)
          const sync = async () => {
            await disk
            await db.sync()
          }
          return { ...db, sync }
        },
      },
    )
  })
  const settleBy = (body: unknown, headers: Record<string, string>) =>
    post(`${keyed.url}/settle`, body, headers)

  test('attack: a buyer without a key spends no ceiling that a server with one has verified', async () => {
    const body = await make()
    expect((await post(`${keyed.url}/verify`, body, bearer)).json).toMatchObject({ isValid: true })
    const rows = keyed.counts()
    for (const charge of [0, 1]) {
      expect((await settleBy(charging(body, charge), {})).status).toBe(401)
    }
    expect(keyed.counts()).toEqual(rows)
    const served = await settleBy(charging(body, 4500), bearer)
    expect(served.json).toMatchObject({ success: true, amount: '4500' })
  })

  for (const charge of [0, 40]) {
    test(`a caller gets its answer to a charge of ${charge} again by its Idempotency-Key`, async () => {
      const mine = { ...bearer, 'idempotency-key': `order-${charge}` }
      const body = charging(await make(), charge)
      const first = await settleBy(body, mine)
      expect(first.json).toMatchObject({ success: true, amount: String(charge) })
      expect(first.headers.get('idempotency-replayed')).toBeNull()
      await keyed.restart()
      const again = await settleBy(body, mine)
      expect(again.json).toEqual(first.json)
      expect(again.headers.get('idempotency-replayed')).toBe('true')
      const others: readonly [Body, Record<string, string>][] = [
        [body, bearer],
        [body, { ...bearer, 'idempotency-key': 'order-9' }],
        [body, { ...mine, authorization: 'Bearer another' }],
        [charging(body, charge + 1), mine],
      ]
      for (const [each, headers] of others) expect(codeOf(await settleBy(each, headers))).toBe(used)
      for (const other of [0, 7]) {
        const { status, json } = await settleBy(charging(await make(), other), mine)
        expect([status, json.errorReason]).toEqual([409, 'idempotency_conflict'])
      }
    })
  }

  // PostgreSQL shows no row before it is on the disk.
  test.skipIf(isPostgres)(
    'error: a charge of nothing is no success for its key before it is on the disk',
    async () => {
      const mine = { ...bearer, 'idempotency-key': 'order-d' }
      const body = charging(await make({ requirements: { maxTimeoutSeconds: 0.2 } }), 0)
      const rows = keyed.counts().authorizations ?? 0
      const held = Promise.withResolvers<void>()
      disk = held.promise
      const first = settleBy(body, mine)
      await until('it is written', () => (keyed.counts().authorizations ?? 0) > rows)
      const early = await settleBy(body, mine).finally(() => {
        disk = undefined
        held.resolve()
      })
      expect([early.status, early.json.success]).toEqual([503, undefined])
      expect((await first).json).toMatchObject({ success: true })
      expect((await settleBy(body, mine)).json).toMatchObject({ success: true })
    },
  )

  test('error: of concurrent authorizations under one Idempotency-Key one succeeds', async () => {
    const mine = { ...bearer, 'idempotency-key': 'order-c' }
    const bodies = [charging(await make(), 0), charging(await make(), 0), charging(await make(), 5)]
    const answers = await Promise.all(bodies.map((body) => settleBy(body, mine)))
    expect(answers.map(({ status }) => status).sort()).toEqual([200, 409, 409])
    expect(successes(answers)).toHaveLength(1)
  })
})

describe('money of the gateway', () => {
  const options = () => ({
    id: shop.app.settlement.createId(),
    receivedAt: Date.now(),
    validUntil: Date.now(),
  })
  /** What the gateway does with a ceiling. */
  function authorize(body: Body, purpose: Partial<Purpose> = {}) {
    const parsed = Facilitation.parse(new TextEncoder().encode(JSON.stringify(body)))
    if (!('request' in parsed)) throw new Error('not read')
    const transfer = Facilitation.transferOf(parsed.request, 8453, 'verify')
    return shop.app.settlement.authorizations.authorize(transfer, purposeOf(purpose), options())
  }

  test('error: money that the gateway has authorized is used for the facilitator, also after it is void', async () => {
    const { authorizations } = shop.app.settlement
    const body = await make()
    const authorized = await authorize(body)
    if (authorized.kind !== 'authorized') throw new Error(authorized.kind)
    await expectUsed(body)
    const nothing = { amountAtomic: 0n, units: {} }
    await authorizations.charge(authorized.authorization, nothing)
    await expectUsed(body)
    const charged = await make()
    const other = await authorize(charged)
    if (other.kind !== 'authorized') throw new Error(other.kind)
    const metered = await authorizations.charge(other.authorization, {
      amountAtomic: 12n,
      units: {},
    })
    await expectUsed(charged)
    const outcome = await authorizations.settleCharge(metered, { waitMs: 120_000 })
    expect(outcome.kind).toBe('confirmed')
    await expectUsed(charged)
  })

  test('error: money that the facilitator has settled or voided is used for the gateway', async () => {
    for (const charge of [0, 13]) {
      const body = await make()
      expect((await settle(charging(body, charge))).json).toMatchObject({ success: true })
      expect(await authorize(body)).toMatchObject({ kind: 'refused', reason: used })
    }
  })

  test('error: of an authorization and a settlement at the same time one is refused', async () => {
    for (const charge of [0, 14]) {
      const body = await make()
      const before = await shop.balance(base, payee)
      const [authorized, settled] = await Promise.all([
        authorize(body),
        settle(charging(body, charge)),
      ])
      const isAuthorized = authorized.kind === 'authorized'
      expect(isAuthorized).toBe(settled.json.success !== true)
      if (isAuthorized) expect(codeOf(settled)).toBe(used)
      const moved = isAuthorized ? 0n : BigInt(charge)
      expect((await shop.balance(base, payee)) - before).toBe(moved)
      await expectUsed(body)
    }
  })
})
