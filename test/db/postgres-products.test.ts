import { expect } from 'bun:test'
import type { Address } from 'viem'
import type { Authorization } from '../../db/Authorization'
import type { NewGrant } from '../../db/GrantLedger'
import type { RetiredOffer } from '../../db/Ledger'
import { authorizationRow } from '../../db/rows'
import { answers, authorizations, type PaymentRow, payments } from '../../db/schema'
import { account } from '../../src/demo/accounts'
import { authorizationOf } from '../harness/authorizations'
import { network, orderOf, paymentRow } from '../harness/desk-orders'
import { outcomeOf } from '../harness/outcome'
import { eachProducts, newAddress, type Products, portion } from '../harness/products'
import { createRandom } from '../soak/random'

/** The ledgers of grants, authorizations, answers and offers do the same on both databases. */

const random = createRandom('products')
const grantTest = eachProducts()
const authorizationTest = eachProducts()
const answerTest = eachProducts()
const offerTest = eachProducts()
const hash = (digit: string): `0x${string}` => `0x${digit.repeat(64)}`
const lower = (address: Address) => address.toLowerCase() as Address
const day = 86_400_000
const today = 20_000 * day
let serial = 0

type GrantChanges = Partial<NewGrant['budget']> & {
  isSigned?: boolean
  isTopUp?: boolean
  createdAt?: number
  network?: NewGrant['row']['network']
}

/** A grant of 10 wei that may cost 5 more, within a budget of 4 grants and 100 wei. */
function grantTo(address: Address, changes: GrantChanges = {}): NewGrant {
  const { isSigned = false, isTopUp = false, createdAt = today + 5, ...more } = changes
  const { network: of = network.id, ...budget } = more
  const common = { network: of, address, amountWei: 10n, feeWei: 5n, createdAt }
  const rest = { isSigned, budget: { from: today, grants: 4, wei: 100n, ...budget } }
  if (isTopUp) return { isTopUp, row: common, ...rest }
  const row = { ...common, token: account(3).address, kind: 'grant', approveHash: null } as const
  return { isTopUp, row, ...rest }
}

const give = (ledger: Products, address: Address, changes: GrantChanges = {}) =>
  ledger.ride({ kind: 'grant', grant: grantTo(address, changes) }, hash('d'))

const tally = (ledger: Products, from = today, of: NewGrant['row']['network'] = network.id) =>
  ledger.grants.tallySince(of, from)

grantTest(
  'error: the budget of the day is judged in the commit, and the last grant reports it',
  async (ledger) => {
    const [first, second, third, fourth, fifth] = Array.from({ length: 5 }, newAddress)
    if (!first || !second || !third || !fourth || !fifth) throw new Error('too few')
    expect(await tally(ledger)).toMatchObject({ grants: 0, wei: 0n })
    expect(await give(ledger, first)).toBeUndefined()
    expect(await ledger.grants.find(network.id, lower(first))).toEqual({
      ...{ network: network.id, address: first, token: account(3).address, kind: 'grant' },
      ...{ transactionHash: hash('d'), amountWei: 10n, feeWei: 5n, approveHash: null },
      createdAt: today + 5,
    })
    expect(await give(ledger, first)).toBe('grant-exists')
    expect(await give(ledger, lower(first))).toBe('grant-exists')
    expect(await give(ledger, second)).toBeUndefined()
    // Half of the grants are given.
    expect(await give(ledger, third)).toBe('grants-signed-only')
    expect(await give(ledger, second)).toBe('grants-signed-only')
    expect(await give(ledger, third, { isSigned: true, wei: 44n })).toBe('grants-spent')
    expect(await give(ledger, third, { isSigned: true, wei: 45n, grants: 9 })).toBeUndefined()
    ledger.events()
    expect(await give(ledger, fourth, { isSigned: true })).toBeUndefined()
    expect(await give(ledger, fifth, { isSigned: true })).toBe('grants-spent')
    expect(await tally(ledger)).toMatchObject({ grants: 4, wei: 60n })
    const events = ledger.events()
    expect(events.map(({ type, body }) => ({ type, data: JSON.parse(body).data }))).toEqual([
      {
        type: 'budget.spent',
        data: {
          ...{ network: network.id, product: 'sponsor', budget: 'grants', day: '2024-10-04' },
          ...{ spentWei: '60', budgetWei: '100', grants: 4, grantsPerDay: 4 },
        },
      },
    ])
  },
)

grantTest('half of the wei is for signed requests, too', async (ledger) => {
  const of = 'eip155:10'
  const [first, second] = [newAddress(), newAddress()]
  expect(await give(ledger, first, { network: of, wei: 30n })).toBeUndefined()
  expect(await give(ledger, second, { network: of, wei: 30n })).toBe('grants-signed-only')
  const signed = { network: of, isSigned: true } as const
  expect(await give(ledger, second, { ...signed, wei: 29n })).toBe('grants-spent')
  expect(await give(ledger, second, { ...signed, wei: 30n })).toBeUndefined()
})

grantTest('a top-up needs a grant, is given once and counts like a grant', async (ledger) => {
  const address = newAddress()
  const of = { network: 'eip155:8453', isTopUp: true, grants: 100, wei: 1_000n } as const
  expect(await outcomeOf(give(ledger, address, of))).toThrow()
  expect(await tally(ledger, today, of.network)).toMatchObject({ grants: 0, wei: 0n })
  expect(await give(ledger, address, { ...of, isTopUp: false })).toBeUndefined()
  expect(await ledger.grants.findTopUp(of.network, address)).toBeUndefined()
  expect(await give(ledger, address, of)).toBeUndefined()
  expect(await give(ledger, lower(address), of)).toBe('grant-exists')
  expect(await ledger.grants.findTopUp(of.network, lower(address))).toMatchObject({
    ...{ address, amountWei: 10n, feeWei: 5n, transactionHash: hash('d') },
  })
  expect(await tally(ledger, today, of.network)).toMatchObject({ grants: 2, wei: 30n })
})

grantTest('a known gas cost changes the row and the sums of its day', async (ledger) => {
  const [address, other] = [newAddress(), newAddress()]
  const of = { network: 'eip155:137', grants: 100, wei: 1_000n } as const
  expect(await give(ledger, address, of)).toBeUndefined()
  expect(await give(ledger, address, { ...of, isTopUp: true })).toBeUndefined()
  const tomorrow = { from: today + day, createdAt: today + day + 1 }
  expect(await give(ledger, other, { ...of, ...tomorrow })).toBeUndefined()
  const set = (fee: bigint, isTopUp: boolean, to = address) =>
    ledger.grants.setFee({ network: of.network, address: to, isTopUp }, fee)
  await set(2n, false, lower(address))
  await set(2n, false)
  await set(9n, true)
  await set(1n, false, newAddress())
  await set(1n, true, other)
  expect(await ledger.grants.find(of.network, address)).toMatchObject({ feeWei: 2n })
  expect(await ledger.grants.findTopUp(of.network, address)).toMatchObject({ feeWei: 9n })
  expect(await tally(ledger, today + day, of.network)).toMatchObject({ grants: 1, wei: 15n })
  await set(0n, false, other)
  expect(await tally(ledger, today + day, of.network)).toMatchObject({ grants: 1, wei: 10n })
})

grantTest('a request of the day before counts for the day on which it was made', async (ledger) => {
  const of = { network: 'eip155:5', grants: 2, wei: 1_000n } as const
  const tomorrow = { from: today + day }
  expect(await give(ledger, newAddress(), { ...of, ...tomorrow })).toBeUndefined()
  expect(await tally(ledger, today + day, of.network)).toMatchObject({ grants: 0 })
  expect(await tally(ledger, today, of.network)).toMatchObject({ grants: 1, wei: 15n })
})

const charge = { amountAtomic: 70n, units: { input: 7 } }
const nothing = { amountAtomic: 0n, units: {} }
const delivered = { upstreamStatus: 206, truncated: true }

/** The payment that settles an authorization. */
function paymentOf({ id, transfer }: Authorization, amountAtomic = 70n): PaymentRow {
  const order = { ...orderOf(random), paymentId: id, settlementTx: hash('a') }
  const { payer, payee, nonce, validBefore } = transfer
  const row = { ...paymentRow(order), payer, payee, nonce, validBefore, amountAtomic }
  const plain = { ...row, ceilingAtomic: 600n, facilitator: account(0).address }
  return {
    ...{ idempotencyKey: null, challengeId: null, credentialHash: null, client: null },
    ...{ logIndex: null, blockNumber: null, delivery: 'none', attempts: 0, upstreamStatus: null },
    ...{ truncated: false, answered: false, redeemTokenHash: null, redeemUntil: null },
    ...{ permit2612Value: null, permit2612Deadline: null, permit2612Signature: null },
    ...{ nonceUsed: false, confirmedAt: null, deliveredAt: null },
    ...(plain as PaymentRow),
    product: 'gateway',
    transactionHash: `0x${(++serial).toString(16).padStart(64, 'b')}`,
    createdAt: 5_000,
  }
}

authorizationTest(
  'it is found as it was written, by its money in any letter case and by its id',
  async (products) => {
    const ledger = products.authorizations
    const [one, other] = [authorizationOf(), authorizationOf()]
    expect(await ledger.insert(one)).toBe('stored')
    expect(await ledger.insert(other)).toBe('stored')
    expect(await ledger.findById(one.id)).toEqual(one)
    expect(await ledger.findById(other.id)).toEqual(other)
    const { payer, asset, nonce } = one.transfer
    const money = { ...one.transfer, payer: lower(payer), asset: lower(asset) }
    const upper = `0x${nonce.slice(2).toUpperCase()}` as const
    expect(await ledger.find({ ...money, nonce: upper })).toEqual(one)
    expect(await ledger.find({ ...money, nonce: hash('0') })).toBeUndefined()
    expect(await ledger.find({ ...money, network: 'eip155:1' })).toBeUndefined()
    expect(await ledger.findById('none')).toBeUndefined()
  },
)

authorizationTest(
  'attack: money is authorized or paid once, in any letter case',
  async (products) => {
    const { authorizations: ledger, insert } = products
    const one = authorizationOf()
    expect(await ledger.insert(one)).toBe('stored')
    expect(await ledger.insert(one)).toBe('known')
    const again = authorizationOf()
    const transfer = { ...one.transfer, payer: lower(one.transfer.payer) }
    expect(await ledger.insert({ ...again, transfer })).toBe('known')
    expect(await ledger.findById(again.id)).toBeUndefined()
    const paid = authorizationOf()
    const row = { ...paymentOf(paid), id: `p${++serial}`, payer: lower(paid.transfer.payer) }
    await insert(payments, row)
    for (const state of ['authorized', 'void'] as const) {
      const done = state === 'void' ? { charge: nothing } : {}
      expect(await ledger.insert({ ...paid, state, ...done })).toBe('known')
    }
    expect(await ledger.findById(paid.id)).toBeUndefined()
    expect(await outcomeOf(insert(payments, { ...paymentOf(one), id: `p${++serial}` }))).toThrow()
    const impossible = authorizationOf({ charge })
    expect(await outcomeOf(ledger.insert(impossible))).toThrow()
  },
)

authorizationTest('each change is made from the states of the table only', async (products) => {
  const { authorizations: ledger, insert } = products
  const of = async (state: Authorization['state']) => {
    const isCharged = state !== 'authorized'
    const done = { charge: state === 'void' ? nothing : charge }
    const row = authorizationOf({ state, ...(isCharged && done) })
    await insert(authorizations, authorizationRow(row))
    return row.id
  }
  const changes = {
    metered: (id: string) => ledger.meter(id, charge, undefined),
    void: (id: string) => ledger.void(id, nothing, delivered),
    failed: (id: string) => ledger.fail(id),
  }
  const ends: string[] = []
  for (const state of ['authorized', 'metered', 'sent', 'void', 'failed'] as const) {
    for (const [into, change] of Object.entries(changes)) {
      const id = await of(state)
      const isChanged = await change(id)
      expect<string | undefined>((await ledger.findById(id))?.state).toBe(isChanged ? into : state)
      if (isChanged) ends.push(`${state} to ${into}`)
    }
  }
  expect(ends).toEqual(['authorized to metered', 'authorized to void', 'metered to failed'])
  for (const change of Object.values(changes)) expect(await change('none')).toBe(false)
})

authorizationTest(
  'a charge is written with what the buyer has, and above the ceiling not at all',
  async (products) => {
    const { authorizations: ledger } = products
    for (const has of [undefined, delivered, { upstreamStatus: 200, truncated: false }]) {
      const one = authorizationOf()
      await ledger.insert(one)
      const above = { amountAtomic: 601n, units: {} }
      expect(await outcomeOf(ledger.meter(one.id, above, has))).toThrow()
      expect(await outcomeOf(ledger.void(one.id, charge, has))).toThrow()
      expect(await ledger.meter(one.id, charge, has)).toBe(true)
      const metered = { ...one, state: 'metered', charge, delivered: has } as const
      expect(await ledger.findById(one.id)).toEqual(metered)
      const other = authorizationOf()
      await ledger.insert(other)
      expect(await ledger.void(other.id, nothing, has)).toBe(true)
      const voided = { ...other, state: 'void', charge: nothing, delivered: has } as const
      expect(await ledger.findById(other.id)).toEqual(voided)
    }
  },
)

authorizationTest(
  'the newest one of a key is found, and one that is void apart from it',
  async (products) => {
    const { authorizations: ledger } = products
    const payer = newAddress()
    const of = (createdAt: number, changes: Partial<Authorization> = {}, key = 'k') => {
      const one = authorizationOf({ createdAt, ...changes }, payer)
      return { ...one, purpose: { ...one.purpose, idempotencyKey: key } }
    }
    const states = {
      metered: { state: 'metered', charge },
      void: { state: 'void', charge: nothing },
    } as const
    const all = [
      of(3),
      of(5, states.metered),
      of(4),
      of(7, states.void),
      of(6, states.void),
      of(9, {}, 'other'),
    ]
    for (const each of all) expect(await ledger.insert(each)).toBe('stored')
    const scope = { merchant: 'm', route: '/r', payer: lower(payer), key: 'k' }
    expect((await ledger.findByIdempotencyKey(scope))?.createdAt).toBe(5)
    expect((await ledger.findVoid(scope))?.createdAt).toBe(7)
    for (const other of [
      { key: 'x' },
      { route: '/x' },
      { merchant: 'x' },
      { payer: newAddress() },
    ]) {
      expect(await ledger.findByIdempotencyKey({ ...scope, ...other })).toBeUndefined()
      expect(await ledger.findVoid({ ...scope, ...other })).toBeUndefined()
    }
    const open = (await ledger.open()).filter((each) => each.transfer.payer === payer)
    expect(open.map(({ createdAt }) => createdAt)).toEqual([9, 5, 4, 3])
  },
)

authorizationTest(
  'a failed settlement of a payer is remembered without a change of the state',
  async (products) => {
    const { authorizations: ledger } = products
    const one = authorizationOf({ state: 'metered', charge })
    const { payer } = one.transfer
    await ledger.insert(one)
    expect(await ledger.hasFailedSince(payer, 0)).toBe(false)
    await ledger.markFailed(one.id, 50)
    await ledger.markFailed('none', 50)
    expect(await ledger.findById(one.id)).toEqual({ ...one, failedAt: 50 })
    expect(await ledger.hasFailedSince(lower(payer), 49)).toBe(true)
    expect(await ledger.hasFailedSince(payer, 50)).toBe(false)
    expect(await ledger.hasFailedSince(newAddress(), 0)).toBe(false)
  },
)

authorizationTest(
  'what is lost and what is paid is summed by payer and merchant',
  async ({ authorizations: ledger, insert }) => {
    const payer = newAddress()
    const one = authorizationOf({}, payer)
    const other = authorizationOf({}, payer)
    const failed = authorizationOf({}, payer)
    const { network, chainId, asset } = one.transfer
    for (const each of [one, other, failed]) await ledger.insert(each)
    // Lost with its ceiling; not lost; lost with its charge.
    await ledger.void(one.id, nothing, undefined, 100)
    await ledger.void(other.id, nothing, undefined)
    await ledger.meter(failed.id, charge, undefined)
    await ledger.markFailed(failed.id, 200)
    const ownLosses = async (at: number) =>
      (await ledger.lossesSince(at))
        .filter((loss) => loss.payer === payer)
        .map(({ id, atomic, at: lostAt, merchant }) => [id, atomic, lostAt, merchant])
        .toSorted()
    const { merchant } = one.purpose
    const losses = [
      [one.id, one.transfer.amountAtomic, 100, merchant],
      [failed.id, charge.amountAtomic, 200, merchant],
    ].toSorted()
    expect(await ownLosses(99)).toEqual(losses)
    expect(await ownLosses(100)).toEqual([[failed.id, charge.amountAtomic, 200, merchant]])
    // What failed only bans its payer; what is void does not.
    expect(await ledger.hasFailedSince(payer, 99)).toBe(true)
    expect(await ledger.hasFailedSince(payer, 200)).toBe(false)
    const lostAtomic = one.transfer.amountAtomic + charge.amountAtomic
    const buyer = { network, asset, payer, merchant }
    expect(await ledger.standingOf(buyer)).toEqual({ paidAtomic: 0n, lostAtomic })
    const confirmed = { state: 'confirmed', logIndex: 0, blockNumber: 1n, confirmedAt: 9 } as const
    await insert(payments, {
      ...paymentOf(authorizationOf()),
      ...confirmed,
      ...{ network, chainId, asset, payer, merchant },
      amountAtomic: 900n,
      ceilingAtomic: null,
      facilitator: null,
    })
    expect(await ledger.standingOf(buyer)).toEqual({ paidAtomic: 900n, lostAtomic })
    expect(await ledger.standingOf({ ...buyer, merchant: 'x' })).toEqual({
      paidAtomic: 0n,
      lostAtomic: 0n,
    })
  },
)

authorizationTest(
  'a metered one is settled once, by the payment of its id, which has its delivery',
  async (products) => {
    const { authorizations: ledger, settle, rows } = products
    for (const has of [undefined, delivered]) {
      const one = authorizationOf()
      await ledger.insert(one)
      const row = paymentOf(one)
      expect(await settle(row)).toBe('money-authorized')
      await ledger.meter(one.id, charge, has)
      // A payment of another amount is not the one that was charged.
      expect(await settle(paymentOf(one, 71n))).toBe('money-authorized')
      expect((await ledger.findById(one.id))?.state).toBe('metered')
      expect(await settle(row)).toBeUndefined()
      expect((await ledger.findById(one.id))?.state).toBe('sent')
      const found = (await rows(payments)).find(({ id }) => id === one.id)
      const handed = { ...has, delivery: 'delivered', attempts: 1, answered: true } as const
      expect(found).toEqual({ ...row, ...(has && { ...handed, deliveredAt: row.createdAt }) })
      expect(await settle(paymentOf(one))).toBe('money-authorized')
      expect(await ledger.fail(one.id)).toBe(false)
    }
    expect(await settle(paymentOf(authorizationOf()))).toBe('money-authorized')
  },
)

answerTest(
  'the first answer of a payment is kept, byte for byte, until it expires',
  async (products) => {
    const { answers: ledger, insert, rows } = products
    const payer = newAddress()
    const paid = async (by: Address) => {
      const order = { ...orderOf(random), payer: by, paymentId: `p${++serial}` }
      await insert(payments, paymentRow({ ...order, settlementTx: hash('a') }))
      return order.paymentId
    }
    const headers = JSON.stringify([['x-name', 'Grüße, \\ "quoted" \u{1f600}']])
    const body = Uint8Array.from({ length: 1_000 }, (_, index) => index % 256)
    const answer = { status: 200, headers, body, createdAt: 10, expiresAt: 20 }
    const [one, empty, third] = [
      await paid(payer),
      await paid(lower(payer)),
      await paid(newAddress()),
    ]
    expect(await ledger.sweep(0)).toBeUndefined()
    await ledger.store(one, answer)
    await ledger.store(one, { ...answer, status: 500, body: new Uint8Array(3) })
    await ledger.store(empty, { ...answer, body: new Uint8Array(), expiresAt: 30 })
    await ledger.store(third, { ...answer, headers: '[]', expiresAt: 40 })
    expect(await ledger.find(one)).toMatchObject(answer)
    expect((await ledger.find(empty))?.body).toEqual(new Uint8Array())
    expect(await ledger.find('none')).toBeUndefined()
    const other = await paid(payer)
    expect(await outcomeOf(ledger.store(other, { ...answer, status: 99 }))).toThrow()
    expect(await outcomeOf(ledger.store('none', answer))).toThrow()
    const bytes = (await ledger.usage(7)).map((each) => each.bytes)
    // Characters of the headers, as SQLite counts them.
    const size = [...headers].length + 7
    expect(bytes.toSorted((left, right) => left - right)).toEqual([1_009, 1_000 + 2 * size])
    expect((await ledger.usage(7)).map(({ owner }) => owner)).toContain(lower(payer))
    expect(await ledger.sweep(19)).toBe(20)
    expect(await ledger.sweep(30)).toBe(40)
    expect((await rows(answers)).map(({ paymentId }) => paymentId)).toEqual([third])
    expect(await ledger.sweep(40)).toBeUndefined()
  },
)

answerTest('a sweep deletes more answers than fit in its portions', async (products) => {
  const { answers: ledger, insert, rows } = products
  const ids = Array.from({ length: 2 * portion + 1 }, () => `p${++serial}`)
  await Promise.all(
    ids.map(async (paymentId) => {
      const order = { ...orderOf(random), paymentId, settlementTx: hash('a') }
      await insert(payments, paymentRow(order))
      const row = { headers: '[]', body: Buffer.from('x'), createdAt: 1 }
      await insert(answers, { ...row, paymentId, status: 200, expiresAt: 2 })
    }),
  )
  expect(await ledger.sweep(2)).toBeUndefined()
  expect(await rows(answers)).toEqual([])
})

const merchant = (slug: string, json = '{}', title = slug) => ({ slug, title, hash: 'h', json })
const offerOf = (payTo: Address, retiredAt: number, amountAtomic = 5n): RetiredOffer => ({
  ...{ merchant: 'm', route: '/r', network: network.id, asset: network.asset.address },
  ...{ payTo, amountAtomic, retiredAt },
})
const byPlace = (one: { retiredAt: number }, other: { retiredAt: number }) =>
  one.retiredAt - other.retiredAt

offerTest(
  'a configuration replaces the merchants and retires offers, which end later',
  async (products) => {
    const { offers: ledger } = products
    const [one, two] = [newAddress(), newAddress()]
    expect([await ledger.merchants(), await ledger.retired()]).toEqual([[], []])
    await ledger.replace({
      merchants: [merchant('a'), merchant('b'), merchant('c')],
      ended: [offerOf(one, 10), offerOf(one, 11, 6n), offerOf(two, 12)],
      keptFrom: 0,
      now: 100,
    })
    expect((await ledger.retired()).toSorted(byPlace)).toEqual([
      ...[offerOf(one, 10), offerOf(one, 11, 6n), offerOf(two, 12)],
    ])
    await ledger.replace({
      // The title is not compared.
      merchants: [merchant('a', '{}', 'A'), merchant('c', '{"x":1}', 'C'), merchant('d')],
      ended: [offerOf(lower(one), 20), offerOf(one, 21)],
      keptFrom: 12,
      now: 200,
    })
    expect((await ledger.retired()).toSorted(byPlace).map((each) => each.retiredAt)).toEqual([
      ...[12, 21],
    ])
    const known = (await ledger.merchants()).toSorted((left, right) =>
      left.slug < right.slug ? -1 : 1,
    )
    expect(known).toEqual([merchant('a'), merchant('c', '{"x":1}', 'C'), merchant('d')])
    await ledger.replace({ merchants: [], ended: [], keptFrom: 13, now: 300 })
    expect(await ledger.merchants()).toEqual([])
    expect(await ledger.retired()).toHaveLength(1)
  },
)
