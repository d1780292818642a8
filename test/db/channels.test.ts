import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { Hex } from 'viem'
import type { Channel, OnChain, Reserved } from '../../db/Channel'
import * as Entitlement from '../../db/Entitlement'
import type { ChannelLedger, Ledger } from '../../db/Ledger'
import { idAt } from '../../db/sales'
import { databaseOf } from '../../db/sqlite/ledger'
import { openInMemory } from '../../db/sqlite/open'
import { account } from '../../src/demo/accounts'
import { nonceOf } from '../../src/protocol/Channel'
import { eventTypes } from '../../src/protocol/Webhook'
import {
  channelOf,
  chargeRow,
  onChain,
  pay,
  reservedOf,
  signatureOf,
  sync,
  type TestChannel,
} from '../harness/channel-rows'
import { outcomeOf } from '../harness/outcome'
import { at, freshNetwork, paymentRow } from '../harness/settling-rows'
import { createTestLedger, type OpenedLedger, type TestLedger } from '../harness/test-ledger'

/** What is kept of payment channels: a voucher is charged once, and never more than was signed. */

let database: TestLedger
let opened: OpenedLedger
let ledger: Ledger
let channels: ChannelLedger
const changed: string[] = []
beforeAll(async () => {
  database = await createTestLedger({ now: () => at })
  opened = await database.open()
  ledger = opened.ledger
  channels = ledger.channels
  ledger.onChange({ payment: (id) => void changed.push(id), job: () => undefined })
  const endpoint = { endpoint: 'e'.repeat(16), origin: 'https://hooks.test', types: eventTypes }
  ledger.webhooks.subscribe({ endpoints: [endpoint], gasPerDay: [] })
})
afterAll(async () => {
  await opened.close()
  await database.close()
})

const fresh = async (state: Partial<OnChain> = {}, network = freshNetwork()) => {
  const channel = channelOf(network)
  expect(await channels.insert(channel, onChain(state), at)).toBe(true)
  return channel
}
const found = async ({ id }: { id: Hex }): Promise<Channel> => {
  const channel = await channels.find(id)
  if (channel === undefined) throw new Error(`no channel ${id}`)
  return channel
}
const countOf = (table: string, where: string) =>
  Number(
    database.sql.query<{ n: number }>(`SELECT count(*) AS n FROM ${table} WHERE ${where}`).get()?.n,
  )
const reserve = (channel: TestChannel, baseAtomic: bigint, reserved: Reserved) =>
  channels.reserve({ channelId: channel.id, baseAtomic, reserved })
const reserved = async (channel: TestChannel, maxAtomic: bigint, baseAtomic = 0n) => {
  const reservation = reservedOf(maxAtomic)
  expect(await reserve(channel, baseAtomic, reservation)).toBe('reserved')
  return reservation
}

test('a channel is stored once, and was charged what was claimed of it', async () => {
  const channel = channelOf(freshNetwork())
  const state = onChain({ claimedAtomic: 70n, refundNonce: 3n, withdrawAt: 9_000 })
  expect(await channels.find(channel.id)).toBeUndefined()
  const answers = await Promise.all([1, 2, 3].map(() => channels.insert(channel, state, at)))
  expect(answers.toSorted()).toEqual([false, false, true])
  expect(await channels.find(channel.id)).toEqual({
    ...{ ...channel, ...state, chargedAtomic: 70n, signed: undefined, reserved: undefined },
    ...{ syncedAt: at, usedAt: at, createdAt: at },
  })
  const upper: Hex = `0x${channel.id.slice(2).toUpperCase()}`
  expect((await channels.find(upper))?.id).toBe(channel.id)
})

describe('a reservation', () => {
  const refusals: readonly {
    why: string
    base?: bigint
    max?: bigint
    state?: Partial<OnChain>
    id?: string
  }[] = [
    { why: 'of another base', base: 19n },
    { why: 'of a base in the future', base: 21n },
    { why: 'above the balance', max: 1_001n },
    { why: 'above the balance, with more digits', max: 10_000n },
    { why: 'of a balance that is claimed', state: { balanceAtomic: 20n } },
    { why: 'during a withdrawal', state: { withdrawAt: at } },
  ]
  for (const { why, base = 20n, max = 120n, state = {} } of refusals)
    test(`error: a voucher ${why} is not reserved`, async () => {
      const channel = await fresh({ claimedAtomic: 20n, ...state })
      const before = await found(channel)
      expect(await reserve(channel, base, reservedOf(max))).toEqual(before)
      expect(await found(channel)).toEqual(before)
    })

  test('error: a voucher of less than was claimed is not reserved', async () => {
    const channel = await fresh({ claimedAtomic: 90n })
    expect(await reserve(channel, 90n, reservedOf(89n))).toMatchObject({ chargedAtomic: 90n })
    expect(await reserve(channel, 90n, reservedOf(8n))).toMatchObject({ reserved: undefined })
  })

  test('the whole balance is reserved, and a channel that is not known is not', async () => {
    const channel = await fresh()
    const reservation = await reserved(channel, 1_000n)
    expect(await found(channel)).toMatchObject({ reserved: reservation, usedAt: at + 5 })
    expect(await reserve(channelOf(freshNetwork()), 0n, reservedOf(1n))).toBeUndefined()
  })

  test('a refund reserves at what was charged, also during a withdrawal', async () => {
    const channel = await fresh({ claimedAtomic: 20n, withdrawAt: at })
    const refund = reservedOf(20n, { id: 'refund:0' })
    expect(await reserve(channel, 20n, refund)).toBe('reserved')
    const request = reservedOf(120n)
    expect(await reserve(channel, 20n, request)).toMatchObject({ reserved: refund })
    expect(await channels.release(channel.id, request.id)).toBe(false)
    expect(await channels.release(channel.id, refund.id)).toBe(true)
    expect(await channels.release(channel.id, refund.id)).toBe(false)
    expect((await found(channel)).reserved).toBeUndefined()
  })

  test('attack: of many vouchers at once one is reserved, and is charged once', async () => {
    const channel = await fresh()
    const all = Array.from({ length: 20 }, () => reservedOf(100n))
    const answers = await Promise.all(all.map((each) => reserve(channel, 0n, each)))
    expect(answers.filter((answer) => answer === 'reserved')).toHaveLength(1)
    const { reserved: winner } = await found(channel)
    const charges = await Promise.all(
      all.flatMap(({ id }) => {
        const charge = { row: chargeRow(channel, id, { baseAtomic: 0n, amountAtomic: 100n }) }
        return [channels.charge(charge), channels.charge(charge)]
      }),
    )
    expect(charges.flatMap((each) => each?.id ?? [])).toEqual([winner?.id ?? ''])
    expect((await found(channel)).chargedAtomic).toBe(100n)
    expect(countOf('payments', `transaction_hash = '${channel.id}'`)).toBe(1)
  })
})

describe('a charge', () => {
  test('writes the payment, what it entitles to and its event in one commit', async () => {
    const channel = await fresh()
    const { id } = await reserved(channel, 100n)
    const names = { resource: 'http://gateway.test/?q="a",(b) \\c', idempotencyKey: 'NULL' }
    const row = chargeRow(channel, id, { baseAtomic: 0n, amountAtomic: 60n }, names)
    const entitles: Entitlement.NewEntitlement = {
      ...{ kind: 'pass', merchant: 'weather', route: '/forecast', fingerprint: undefined },
      ...{ usesMax: 3, periodMs: 60_000 },
    }
    const charge = { row, rows: { entitles } }
    changed.length = 0
    const payment = await channels.charge(charge)
    expect(payment).toMatchObject({
      ...{ id, state: 'confirmed', delivery: 'delivering', attempts: 1, confirmedAt: at + 6 },
      ...{ transaction: channel.id, logIndex: undefined, blockNumber: undefined, purpose: names },
      transfer: { method: 'channel', amountAtomic: 60n, nonce: nonceOf(channel.id, 0n) },
    })
    expect(await ledger.payments.findById(id)).toEqual(payment)
    expect(payment && (await ledger.payments.find(payment.transfer))).toEqual(payment)
    expect(await found(channel)).toMatchObject({
      ...{ chargedAtomic: 60n, reserved: undefined },
      signed: { maxAtomic: 100n, signature: signatureOf(100n) },
    })
    expect(changed).toEqual([id])
    const pass = await ledger.entitlements.findByPayment(id)
    expect(pass).toMatchObject({ id: Entitlement.idOf('pass', id), until: at + 60_006 })
    expect(countOf('webhooks', `subject = '${id}' AND type = 'payment.confirmed'`)).toBe(1)
    const [told] = await ledger.webhooks.list(1)
    expect(JSON.parse(told?.body ?? '').data).toMatchObject({
      ...{ scheme: 'channel', channel: channel.id, amountAtomic: '60' },
      ...{ transaction: null, logIndex: null, blockNumber: null },
    })
    // No reorganisation, no recovery and no refund takes it for a transaction.
    const ids = (all: readonly { id: string }[]) => all.map((each) => each.id)
    expect(ids(await ledger.payments.unfinished())).not.toContain(id)
    expect(await ledger.payments.orphans(channel.network)).toEqual([])
    expect(await ledger.transactions.includedFrom(channel.network, 0n)).toEqual([])
    const done = { upstreamStatus: 200, truncated: false }
    expect(await ledger.deliveries.deliver(id, done, at + 7)).toBe(true)
    expect(await ledger.payments.findById(id)).toMatchObject({ delivery: 'delivered' })
  })

  test('the next voucher begins where the last charge ended', async () => {
    const channel = await fresh()
    expect(await pay(channels, channel, { baseAtomic: 0n, amountAtomic: 9n })).toBeDefined()
    expect(await pay(channels, channel, { baseAtomic: 9n, amountAtomic: 991n })).toBeDefined()
    expect(await pay(channels, channel, { baseAtomic: 9n, amountAtomic: 1n })).toBeUndefined()
    expect(await pay(channels, channel, { baseAtomic: 1_000n, amountAtomic: 1n })).toBeUndefined()
    expect((await found(channel)).chargedAtomic).toBe(1_000n)
  })

  const faults: readonly [why: string, amount: bigint, base: bigint, id?: string][] = [
    ['above the reservation', 101n, 0n],
    ['above the reservation, with more digits', 1_000n, 0n],
    ['above another base', 10n, 1n],
    ['of another reservation', 10n, 0n, 'pay_other'],
  ]
  for (const [why, amountAtomic, baseAtomic, other] of faults)
    test(`error: a charge ${why} writes nothing`, async () => {
      const channel = await fresh()
      const { id } = await reserved(channel, 100n)
      const before = await found(channel)
      const row = chargeRow(channel, other ?? id, { baseAtomic, amountAtomic })
      expect(await channels.charge({ row })).toBeUndefined()
      expect(await found(channel)).toEqual(before)
      expect(await ledger.payments.findById(row.id)).toBeUndefined()
    })

  test('error: a charge without a reservation, or of nothing, writes nothing', async () => {
    const channel = await fresh()
    const none = chargeRow(channel, 'pay_none', { baseAtomic: 0n, amountAtomic: 10n })
    const charge = { row: none }
    expect(await channels.charge(charge)).toBeUndefined()
    const { id } = await reserved(channel, 100n)
    const free = { row: chargeRow(channel, id, { baseAtomic: 0n, amountAtomic: 0n }) }
    expect(await outcomeOf(channels.charge(free))).toThrow()
    expect(await found(channel)).toMatchObject({ chargedAtomic: 0n, reserved: { id } })
  })

  test('attack: a payer that uses the nonce of a charge for other money is charged', async () => {
    for (const isSigned of [false, true]) {
      const channel = await fresh()
      const { id } = await reserved(channel, 100n)
      const row = chargeRow(channel, id, { baseAtomic: 0n, amountAtomic: 60n })
      const other = paymentRow(
        { network: channel.network, hash: channel.id },
        {
          ...{
            nonce: row.nonce,
            state: 'confirmed',
            logIndex: 1,
            blockNumber: 7n,
            confirmedAt: at,
          },
        },
      )
      if (isSigned)
        database.sql.run(
          `INSERT INTO authorizations (id, network, chain_id, asset, payer, payee, ceiling_atomic,
             facilitator, nonce, valid_after, valid_before, signature, product, merchant, route,
             fingerprint, resource, bound, received_at, known_block, state, created_at)
           VALUES ('${other.id}', '${other.network}', ${other.chainId}, '${other.asset}',
             '${other.payer}', '${other.payee}', '9', '${other.payee}', '${other.nonce}', '0', '9',
             '0x00', 'gateway', 'm', '/r', 'f', 'r', '1', 1, 1, 'authorized', 1)`,
        )
      else expect(await ledger.settling.storeExternal({ row: other })).toBe('stored')
      const charge = { row }
      const charged = await channels.charge(charge)
      expect(charged?.transfer.nonce).not.toBe(row.nonce)
      expect(await ledger.payments.findById(id)).toEqual(charged)
      expect((await found(channel)).chargedAtomic).toBe(60n)
    }
  })

  test('attack: one voucher is published until it does not cover what was charged', async () => {
    const channel = await fresh()
    const kept: bigint[] = []
    for (const [baseAtomic, maxAtomic] of [
      [0n, 100n],
      [30n, 110n],
      [60n, 90n],
      [90n, 120n],
      [120n, 200n],
    ] as const) {
      const reserved = reservedOf(maxAtomic)
      expect(await reserve(channel, baseAtomic, reserved)).toBe('reserved')
      const charge = { row: chargeRow(channel, reserved.id, { baseAtomic, amountAtomic: 30n }) }
      expect(await channels.charge(charge)).toBeDefined()
      const { signed } = await found(channel)
      expect(signed?.signature).toBe(signatureOf(signed?.maxAtomic ?? 0n))
      kept.push(signed?.maxAtomic ?? 0n)
    }
    expect(kept).toEqual([100n, 100n, 100n, 120n, 200n])
  })

  test('what a channel was charged is not refunded by a transfer', async () => {
    const channel = await fresh()
    const id = idAt(at - 26 * 3_600_000)
    expect(await reserve(channel, 0n, reservedOf(60n, { id }))).toBe('reserved')
    const charge = { row: chargeRow(channel, id, { baseAtomic: 0n, amountAtomic: 60n }) }
    expect(await channels.charge(charge)).toBeDefined()
    const refunder = account(9).address
    const request = { paymentId: id, account: refunder, amountAtomic: undefined, note: undefined }
    expect(
      await ledger.refunds.request({ ...request, reason: 'operator', perDayAtomic: 900n, now: at }),
    ).toBe('not-confirmed')
    const due = { merchants: ['weather'], afterId: idAt(at - 27 * 3_600_000), now: at, limit: 99 }
    expect((await ledger.refunds.undelivered(due)).ids).toEqual([])
  })
})

describe('what the chain has', () => {
  test('error: after a restored backup charged is what was claimed', async () => {
    const channel = await fresh()
    await pay(channels, channel, { baseAtomic: 0n, amountAtomic: 90n })
    await reserved(channel, 190n, 90n)
    const synced = await sync(channels, channel, onChain({ claimedAtomic: 100n }), at + 9)
    expect(synced).toMatchObject({
      ...{ chargedAtomic: 100n, claimedAtomic: 100n, syncedAt: at + 9 },
      ...{ signed: undefined, reserved: undefined },
    })
    expect(synced).toEqual(await found(channel))
    expect(await pay(channels, channel, { baseAtomic: 100n, amountAtomic: 1n })).toBeDefined()
  })

  test('attack: an older read does not follow a newer one, whatever the clocks say', async () => {
    const channel = await found(await fresh())
    const state = onChain({ balanceAtomic: 900n })
    // Of a clock that is late.
    expect(await channels.sync(channel, state, at - 9)).toMatchObject({ balanceAtomic: 900n })
    expect(await channels.sync(channel, onChain(), at + 9)).toBeUndefined()
    const { syncedAt } = await found(channel)
    expect(syncedAt).toBeGreaterThan(channel.syncedAt)
    expect(
      await channels.sync({ ...channelOf(channel.network), syncedAt }, onChain(), at),
    ).toBeUndefined()
    expect(await found(channel)).toMatchObject({ balanceAtomic: 900n })
  })

  test('less claimed than before, after a reorganisation, leaves what was charged', async () => {
    const channel = await fresh()
    await pay(channels, channel, { baseAtomic: 0n, amountAtomic: 90n })
    const { id } = await reserved(channel, 190n, 90n)
    for (const claimedAtomic of [90n, 40n])
      expect(await sync(channels, channel, onChain({ claimedAtomic }), at)).toMatchObject({
        ...{ chargedAtomic: 90n, claimedAtomic, signed: { maxAtomic: 90n }, reserved: { id } },
      })
  })

  test('a refund stays reserved until its nonce is used', async () => {
    const channel = await fresh({ refundNonce: 4n })
    await pay(channels, channel, { baseAtomic: 0n, amountAtomic: 90n })
    const refund = reservedOf(90n, { id: 'refund:4' })
    expect(await reserve(channel, 90n, refund)).toBe('reserved')
    const same = onChain({ claimedAtomic: 90n, refundNonce: 4n })
    expect((await sync(channels, channel, same, at))?.reserved).toEqual(refund)
    const used = { ...same, balanceAtomic: 500n, refundNonce: 5n }
    expect((await sync(channels, channel, used, at))?.reserved).toBeUndefined()
  })

  test('attack: a node behind the deposit does not make the request under way free', async () => {
    const channel = await fresh()
    await pay(channels, channel, { baseAtomic: 0n, amountAtomic: 10n })
    const { id } = await reserved(channel, 70n, 10n)
    const withdrawing = onChain({ balanceAtomic: 0n, withdrawAt: at })
    expect(await sync(channels, channel, withdrawing, at)).toMatchObject({
      ...{ balanceAtomic: 0n, withdrawAt: at, reserved: { id } },
    })
    // Just what is reserved counts until the request has ended, so that the channel is open.
    const empty = onChain({ balanceAtomic: 0n })
    const reservedOnly = { balanceAtomic: 70n, withdrawAt: undefined, syncedAt: at + 9 }
    for (const syncedAt of [at + 8, at + 9])
      expect(await sync(channels, channel, empty, syncedAt)).toMatchObject({
        ...{ ...reservedOnly, syncedAt, reserved: { id } },
      })
    expect(await reserve(channel, 10n, reservedOf(60n))).toMatchObject({ reserved: { id } })
    const charge = { row: chargeRow(channel, id, { baseAtomic: 10n, amountAtomic: 50n }) }
    expect(await channels.charge(charge)).toMatchObject({ id })
    expect(await reserve(channel, 60n, reservedOf(71n))).toMatchObject({ reserved: undefined })
    expect(await sync(channels, channel, empty, at)).toMatchObject({ balanceAtomic: 0n })
  })

  test('a refund of a channel that is shown as empty stays reserved', async () => {
    const channel = await fresh()
    const refund = reservedOf(0n, { id: 'refund:0' })
    expect(await reserve(channel, 0n, refund)).toBe('reserved')
    const empty = onChain({ balanceAtomic: 0n })
    expect(await sync(channels, channel, empty, at)).toMatchObject({
      ...{ balanceAtomic: 0n, reserved: refund },
    })
    expect(await sync(channels, channel, { ...empty, refundNonce: 1n }, at)).toMatchObject({
      ...{ balanceAtomic: 0n, reserved: undefined },
    })
  })
})

test('the lists have the open channels, what is unclaimed and who claims it', async () => {
  const network = freshNetwork()
  const make = async (state: Partial<OnChain>, amountAtomic: bigint, authorizer = 8) => {
    const channel = channelOf(network, { receiverAuthorizer: account(authorizer).address })
    expect(await channels.insert(channel, onChain(), at - 100 + made)).toBe(true)
    made++
    await pay(channels, channel, { baseAtomic: 0n, amountAtomic })
    await sync(channels, channel, onChain(state), at)
    return channel.id
  }
  let made = 0
  const claimed = await make({ claimedAtomic: 5n }, 5n)
  const closed = await make({ balanceAtomic: 7n, claimedAtomic: 7n }, 7n)
  const dear = await make({}, 900n, 9)
  const partly = await make({ claimedAtomic: 10n }, 99n)
  // Of this balance no more than 20 can be claimed.
  const lost = await make({ balanceAtomic: 30n, claimedAtomic: 10n, withdrawAt: at + 1 }, 500n)
  const gone = await make({ balanceAtomic: 10n, claimedAtomic: 10n }, 500n)
  const ids = (all: readonly Channel[]) => all.map(({ id }) => id)
  expect(ids(await channels.open(network, 2))).toEqual([claimed, dear])
  expect(ids(await channels.open(network, 2, dear))).toEqual([partly, lost])
  expect(ids(await channels.open(network, 2, lost))).toEqual([])
  expect(ids(await channels.open(network, 9_999))).toContain(partly)
  expect(ids(await channels.open(network, 9_999))).not.toContain(closed)
  expect(ids(await channels.unclaimed(network, 9))).toEqual([dear, partly, lost])
  expect(ids(await channels.unclaimed(network, 1))).toEqual([dear])
  const withdrawn = await channels.withdrawals(9_999)
  expect(ids(withdrawn.filter((each) => each.network === network))).toEqual([lost])
  const totals = (await channels.totals()).find((each) => each.network === network)
  const withdrawals = { withdrawals: 1, unsafeWithdrawals: 1 }
  expect(totals).toEqual({ network, channels: 4, ...withdrawals, unclaimedAtomic: 1_009n })
  const of9 = { authorizer: account(9).address, channels: 1 }
  expect(await channels.authorizers()).toContainEqual(of9)
  const newest = await channels.list({ limit: 9_999 })
  const own = newest.filter((each) => each.network === network)
  expect(ids(own)).toEqual([gone, lost, partly, dear, closed, claimed])
  const [, second] = newest
  const rest = await channels.list({ before: newest[0]?.id, limit: 1 })
  expect(rest).toEqual(second ? [second] : [])
})

test('a start releases what requests of the process before had reserved, and no refund', async () => {
  const db = openInMemory({ now: () => at })
  const { ledger: before } = databaseOf(db)
  const [one, other] = [channelOf(freshNetwork()), channelOf(freshNetwork())]
  const refund = reservedOf(0n, { id: 'refund:0' })
  for (const channel of [one, other]) await before.channels.insert(channel, onChain(), at)
  await before.channels.reserve({ channelId: one.id, baseAtomic: 0n, reserved: reservedOf(10n) })
  // Also of a channel that is empty.
  await sync(before.channels, one, onChain({ balanceAtomic: 0n }), at)
  await before.channels.reserve({ channelId: other.id, baseAtomic: 0n, reserved: refund })
  const { ledger: after } = databaseOf(db)
  expect(await pay(after.channels, one, { baseAtomic: 0n, amountAtomic: 10n })).toBeDefined()
  expect((await after.channels.find(other.id))?.reserved).toEqual(refund)
  db.close()
})
