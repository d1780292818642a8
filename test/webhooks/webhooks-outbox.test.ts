import { afterAll, beforeEach, describe, expect, test } from 'bun:test'
import { createGrants } from '../../db/sqlite/grants'
import { createOutbox } from '../../db/sqlite/webhooks'
import { write } from '../../db/sqlite/write'
import type { LateClaims, StuckRefunds } from '../../db/WebhookEvent'
import type { Subscriptions, WebhookLedger } from '../../db/webhooks'
import { account } from '../../src/demo/accounts'
import { eventTypes, typesOf } from '../../src/protocol/Webhook'
import { createConditionWatch } from '../../src/webhooks/operator-alerts'
import { endpointOf, startSender } from '../harness/outbox'
import { startReceiver } from '../harness/receiver'
import { type Scripted, scripted } from '../harness/scripted'

/** Which messages the commits of the ledger write, and how many are kept. */

const receiver = startReceiver()
afterAll(() => receiver.stop())
beforeEach(() => {
  receiver.received.length = 0
  receiver.answer = undefined
})

const hour = 3_600_000
const day = 24 * hour
const all: Subscriptions['endpoints'] = [
  { endpoint: 'e'.repeat(16), origin: 'https://hooks.test', types: eventTypes },
]
type Row = { id: string; type: string; subject: string; body: string; due_at: number }

function messages({ db }: Pick<Scripted, 'db'>, type = '%'): Row[] {
  return db.sqlite
    .query<Row, [string]>('SELECT * FROM webhooks WHERE type LIKE ? ORDER BY seq')
    .all(type)
}
const dataOf = ({ body }: Row) => JSON.parse(body).data

/** A scripted settlement whose ledger writes every event. */
async function subscribed(changes: Parameters<typeof scripted>[0] = {}) {
  const made: { webhooks?: WebhookLedger } = {}
  const own = await scripted({
    ...changes,
    ledger: (ledger) => {
      const gateway = changes.network?.gasPerDayWei?.gateway ?? 10n ** 18n
      const gasPerDay = [{ network: 'eip155:8453', product: 'gateway', wei: gateway }] as const
      ledger.webhooks.subscribe({ endpoints: all, gasPerDay })
      made.webhooks = ledger.webhooks
      return ledger
    },
  })
  if (made.webhooks === undefined) throw new Error('no ledger')
  return Object.assign(own, { webhooks: made.webhooks })
}

describe.concurrent('payment.confirmed', () => {
  test('payment.confirmed is written with the confirmation, with the facts of the payment only', async () => {
    await using own = await subscribed()
    const transfer = own.sign({ from: 2 })
    await own.pay(transfer, { idempotencyKey: 'buyers-key', resource: 'http://x/?q=buyers-query' })
    const payment = await own.payment(transfer)
    const [row, ...others] = messages(own)
    expect(others).toEqual([])
    expect(row).toMatchObject({
      type: 'payment.confirmed',
      subject: payment.id,
      due_at: payment.confirmedAt,
    })
    expect(JSON.parse(row?.body ?? '')).toEqual({
      type: 'payment.confirmed',
      timestamp: new Date(payment.confirmedAt ?? 0).toISOString(),
      data: {
        payment: payment.id,
        product: 'gateway',
        protocol: 'x402',
        scheme: 'exact',
        merchant: 'weather',
        route: '/forecast',
        network: 'eip155:8453',
        asset: own.network.asset.address,
        amountAtomic: '5000',
        payer: account(2).address,
        payee: transfer.payee,
        transaction: payment.transaction,
        logIndex: payment.logIndex,
        blockNumber: Number(payment.blockNumber),
      },
    })
    expect(row?.body).not.toMatch(/buyers-|signature|nonce/)
    expect(row?.body).not.toContain(transfer.signature.slice(2))
  })

  test('payment.confirmed is written with its payment, or neither of them', async () => {
    await using own = await subscribed()
    own.db.sqlite.run(
      "CREATE TRIGGER full BEFORE INSERT ON webhooks BEGIN SELECT RAISE(ABORT, 'full'); END",
    )
    const transfer = own.sign()
    await own.begin(transfer)
    await own.reaches(transfer, 'broadcast')
    const outcome = await own.settlement.resume(await own.payment(transfer), transfer, {
      waitMs: 200,
      requestId: 'r',
    })
    expect(outcome.kind).toBe('pending')
    expect(await own.stateOf(transfer)).toBe('broadcast')
    expect(messages(own)).toEqual([])
    own.db.sqlite.run('DROP TRIGGER full')
    await own.restart()
    await own.reaches(transfer, 'confirmed')
    expect(messages(own)).toHaveLength(1)
  })

  test('a payment in another block after a reorganisation is another event', async () => {
    await using own = await subscribed()
    const transfer = own.sign()
    await own.pay(transfer)
    own.chain.drop(1)
    own.chain.mine([])
    await own.restart({ checkMs: 1 })
    await own.checked()
    await own.reaches(transfer, 'confirmed')
    const rows = messages(own)
    expect(rows.map(({ subject }) => subject)).toEqual(
      Array(2).fill((await own.payment(transfer)).id),
    )
    expect(new Set(rows.map((row) => dataOf(row).blockNumber)).size).toBe(2)
    expect(new Set(rows.map(({ id }) => id)).size).toBe(2)
  })

  test('an external settlement is an event, too', async () => {
    await using own = await subscribed({ settlement: { payoutExclusive: () => true } })
    const transfer = own.sign()
    const hash = own.chain.settleExternally(transfer)
    const outcome = await own.pay(transfer, { bound: true, protocol: 'mpp' })
    expect(outcome.kind).toBe('confirmed')
    expect(messages(own).map((row) => dataOf(row).transaction)).toEqual([hash])
  })

  test('members of a batch have one each, and nothing is written without a subscription', async () => {
    await using own = await subscribed()
    const transfers = [1, 2, 3, 4].map((from) => own.sign({ from }))
    await Promise.all(transfers.map((each) => own.pay(each)))
    expect(new Set(messages(own).map(({ subject }) => subject)).size).toBe(4)
    await using silent = await scripted()
    await silent.pay(silent.sign())
    expect(messages(silent)).toEqual([])
  })
})

describe.concurrent('delivery.failed', () => {
  test('delivery.failed is written with each failed attempt, without its token', async () => {
    await using own = await subscribed()
    const transfer = own.sign()
    await own.pay(transfer)
    const { id } = await own.payment(transfer)
    const redeemUntil = own.clock.ms + day
    for (const upstreamStatus of [503, undefined]) {
      await own.settlement.beginDelivery(id)
      const redeemTokenHash = 'f0'.repeat(32)
      await own.settlement.endDelivery(id, {
        delivered: false,
        upstreamStatus,
        redeemTokenHash,
        redeemUntil,
      })
    }
    await own.settlement.beginDelivery(id)
    await own.settlement.endDelivery(id, { delivered: true, upstreamStatus: 200, truncated: false })
    const rows = messages(own, 'delivery.failed')
    const redeemableUntil = new Date(redeemUntil).toISOString()
    expect(rows.map(dataOf)).toMatchObject([
      { payment: id, attempts: 1, upstreamStatus: 503, redeemableUntil, amountAtomic: '5000' },
      { payment: id, attempts: 2, upstreamStatus: null, redeemableUntil },
    ])
    expect(messages(own).map(({ type }) => type)).toEqual([
      'payment.confirmed',
      'delivery.failed',
      'delivery.failed',
    ])
    expect(JSON.stringify(rows)).not.toContain('f0f0')
  })
})

describe.concurrent('budget.spent', () => {
  test('budget.spent is written once a day, with the payment that reaches the budget', async () => {
    // A settling call costs 120,000 gwei on this chain.
    const callWei = 120_000_000_000_000n
    const budgets = { facilitator: 10n ** 18n, desk: 10n ** 18n, sponsor: 0n, channels: 0n }
    const gasPerDayWei = { ...budgets, gateway: callWei + 1n }
    await using own = await subscribed({ network: { gasPerDayWei } })
    await own.pay(own.sign())
    expect(messages(own, 'budget.spent')).toEqual([])
    await own.pay(own.sign())
    expect((await own.pay(own.sign())).kind).toBe('unavailable')
    const [row, ...others] = messages(own, 'budget.spent')
    expect(others).toEqual([])
    expect(row?.subject).toBe('eip155:8453')
    expect(dataOf(row as Row)).toEqual({
      network: 'eip155:8453',
      product: 'gateway',
      budget: 'gas',
      day: new Date(own.clock.ms).toISOString().slice(0, 10),
      spentWei: String(2n * callWei),
      budgetWei: String(callWei + 1n),
    })
    own.clock.ms += day
    own.chain.seconds += BigInt(day / 1000)
    own.chain.mine([])
    for (const _ of [1, 2]) await own.pay(own.sign())
    expect(messages(own, 'budget.spent')).toHaveLength(2)
  })

  test('the last grant of a day is the event of the sponsor', async () => {
    await using own = await scripted()
    const outbox = createOutbox(own.db)
    outbox.subscribe({ endpoints: all, gasPerDay: [] })
    const { riders } = createGrants(own.db, outbox)
    const grant = (address: `0x${string}`) => ({
      kind: 'grant' as const,
      grant: {
        isTopUp: false as const,
        isSigned: true,
        budget: { grants: 2, wei: 1_000_000n, from: 0 },
        row: {
          network: 'eip155:8453' as const,
          address,
          token: own.network.asset.address,
          amountWei: 10n,
          feeWei: 1n,
          kind: 'grant' as const,
          approveHash: null,
          createdAt: own.clock.ms,
        },
      },
    })
    const hash = `0x${'ab'.repeat(32)}` as const
    write(own.db, () => riders.ride(grant(account(1).address), hash))
    expect(messages(own)).toEqual([])
    write(own.db, () => riders.ride(grant(account(2).address), `0x${'cd'.repeat(32)}`))
    expect(messages(own).map(dataOf)).toMatchObject([
      { product: 'sponsor', budget: 'grants', grants: 2, grantsPerDay: 2, spentWei: '22' },
    ])
  })
})

describe.concurrent('what fails and recovers', () => {
  const relayer = '0x5c1f3a86d2e04b7795a1c0de34f6b8927e1d4a03'
  const network = 'eip155:8453'

  /** Looks at states that a test changes, and returns the types and data of the new messages. */
  async function watching(own: Awaited<ReturnType<typeof subscribed>>) {
    const states = {
      ready: true,
      balanceWei: 10n ** 18n,
      refused: [] as string[],
      certificate: undefined as string | undefined,
      refunds: [] as StuckRefunds[],
      claims: [] as LateClaims[],
    }
    const clock = { ms: own.clock.ms }
    const look = createConditionWatch({
      ledger: own.webhooks,
      watched: {
        networks: () => [
          {
            network,
            ready: states.ready,
            reason: 'x'.repeat(1_000),
            relayers: [
              {
                ...{ relayer, ready: true, inFlight: 0, nonce: 0, reason: undefined },
                ...{ balanceWei: states.balanceWei, topUpWei: 7n },
                ...{ fundWei: undefined, remedy: undefined },
              },
            ],
            cost: { gas: 100n, priceWei: 1_000n },
          },
        ],
        refused: () => states.refused.map((merchant) => ({ merchant, reason: '401' })),
        certificates: () => [{ domain: 'a.test', reason: states.certificate }],
        refunds: () => states.refunds,
        claims: () => states.claims,
      },
      now: () => clock.ms,
    })
    let seen = 0
    return async (change: Partial<typeof states>, ms = 1_000) => {
      Object.assign(states, change)
      clock.ms += ms
      await look()
      const all = messages(own)
      const added = all.slice(seen)
      seen = all.length
      return added.map((row) => [row.type, dataOf(row)] as const)
    }
  }

  test('a network that can no longer settle is reported at most once a minute, and its recovery', async () => {
    await using own = await subscribed()
    const look = await watching(own)
    const paused = ['network.paused', { network, reason: 'x'.repeat(300) }] as const
    const resumed = ['network.resumed', { network }] as const
    expect(await look({ ready: true })).toEqual([])
    expect(await look({ ready: false })).toEqual([paused])
    expect(await look({ ready: false }, hour)).toEqual([])
    expect(await look({ ready: true })).toEqual([resumed])
    expect(await look({ ready: false })).toEqual([paused])
    // It recovers and fails again within a minute, and is still paused after that.
    expect(await look({ ready: true })).toEqual([resumed])
    expect(await look({ ready: false })).toEqual([])
    expect(await look({ ready: false }, 60_000)).toEqual([paused])
  })

  test('a relayer with gas for fewer than 200 payments is reported, and when it has twice that again', async () => {
    await using own = await subscribed()
    const look = await watching(own)
    const gas = { network, relayer }
    expect(await look({ balanceWei: 20_000_000n })).toEqual([])
    expect(await look({ balanceWei: 19_999_999n })).toEqual([
      ['gas.low', { ...gas, balanceWei: '19999999', payments: 199, sendWei: '7' }],
    ])
    expect(await look({ balanceWei: 5n })).toEqual([])
    expect(await look({ balanceWei: 39_999_999n })).toEqual([])
    expect(await look({ balanceWei: 40_000_000n })).toEqual([
      ['gas.refilled', { ...gas, balanceWei: '40000000', payments: 400 }],
    ])
  })

  test('claims of channels that are late are reported, and when they come in time again', async () => {
    await using own = await subscribed()
    const look = await watching(own)
    const late = { network, reason: 'no gas', since: 0, unclaimedAtomic: 7n } as const
    const data = {
      network,
      reason: 'no gas',
      since: '1970-01-01T00:00:00.000Z',
      unclaimedAtomic: '7',
    }
    expect(await look({ claims: [late] })).toEqual([['channel.waits', data]])
    expect(await look({ claims: [late] }, hour)).toEqual([])
    expect(await look({ claims: [] })).toEqual([['channel.continues', { network }]])
  })

  test('a domain without a good certificate is reported, and when it has one again', async () => {
    await using own = await subscribed()
    const look = await watching(own)
    const domain = 'a.test'
    const reason = 'its certificate expired'
    expect(await look({ certificate: reason })).toEqual([['certificate.fails', { domain, reason }]])
    expect(await look({ certificate: undefined })).toEqual([['certificate.works', { domain }]])
  })

  test('refunds that wait for the operator are reported, and when none waits any more', async () => {
    await using own = await subscribed()
    const look = await watching(own)
    const stuck = { network, account: relayer, reason: 'too little', payments: 2 } as const
    expect(await look({ refunds: [{ ...stuck, amountAtomic: 7n }] })).toEqual([
      ['refund.waits', { ...stuck, amountAtomic: '7' }],
    ])
    expect(await look({ refunds: [] })).toEqual([['refund.continues', { network }]])
  })

  test('a merchant whose key is refused is reported, and when it is accepted again', async () => {
    await using own = await subscribed()
    const look = await watching(own)
    expect(await look({ refused: ['weather'] })).toEqual([
      ['upstream.refuses', { merchant: 'weather', reason: '401' }],
    ])
    expect(await look({})).toEqual([])
    expect(await look({ refused: [] })).toEqual([['upstream.accepts', { merchant: 'weather' }]])
  })
})

describe('the outbox', () => {
  const endpoint = endpointOf(receiver.url)
  const bounds = { waitingMax: 5, endedMax: 3, endedMs: day }

  test('when too many messages wait, the oldest are given up, and others are not delayed', async () => {
    const removed = endpointOf('http://127.0.0.1:1')
    await using own = await startSender({ endpoints: [endpoint, removed], bounds })
    own.sender.apply([endpoint])
    receiver.answer = () => new Response(null, { status: 400 })
    for (let i = 1; i <= 8; i++) await own.add(`pay_${i}`)
    await own.pass(10_000)
    const of = (state: string) => own.rows().filter((row) => row.state === state)
    expect(of('waiting').map(({ subject }) => subject)).toEqual([
      'pay_4',
      'pay_5',
      'pay_6',
      'pay_7',
      'pay_8',
    ])
    expect(of('failed').map(({ last_error }) => last_error)).toEqual(Array(3).fill('dropped'))
    expect(own.logged.at(-1)).toMatchObject({ event: 'webhook-lost', reason: 'dropped', count: 3 })
    expect(own.counts.get('dropped')).toBe(3)
  })

  test('ended messages are deleted by number and by age', async () => {
    await using own = await startSender({ endpoints: [endpoint], bounds })
    for (let i = 1; i <= 6; i++) {
      await own.add(`pay_${i}`)
      await own.pass(10_000)
    }
    expect(own.rows().length).toBeLessThanOrEqual(4)
    expect(own.rows().at(-1)).toMatchObject({ subject: 'pay_6', state: 'delivered' })
    await own.pass(day)
    await own.pass(10_000)
    expect(own.rows()).toEqual([])
  })

  test('messages of a removed endpoint wait for its return, for a day', async () => {
    await using own = await startSender({ endpoints: [endpoint] })
    receiver.answer = () => new Response(null, { status: 400 })
    await own.add('pay_1')
    await own.add('pay_2')
    await own.pass(0)
    receiver.answer = undefined
    own.sender.apply([])
    await own.add('pay_3')
    await own.pass(hour)
    expect(own.rows().map(({ state }) => state)).toEqual(['waiting', 'waiting'])
    expect(receiver.received).toHaveLength(2)
    own.sender.apply([endpoint])
    await own.pass(0)
    expect(own.rows().map(({ state }) => state)).toEqual(['delivered', 'delivered'])
    receiver.answer = () => new Response(null, { status: 400 })
    await own.add('pay_4')
    await own.pass(0)
    own.sender.apply([])
    await own.pass(day)
    expect(own.rows().at(-1)).toMatchObject({ state: 'failed', last_error: 'removed' })
    expect(own.counts.get('removed')).toBe(1)
  })

  test('after a stop of more than a day the messages are still sent', async () => {
    await using own = await startSender({ endpoints: [endpoint] })
    await own.sender.stop(0)
    await own.add('pay_1')
    own.clock.ms += 2 * day
    const later = own.create()
    later.apply([endpoint])
    await later.recover()
    await later.idle()
    expect(own.rows()).toMatchObject([{ state: 'delivered', attempts: 1 }])
    await later.stop(0)
  })

  test('a result that cannot be written does not send the message in a loop', async () => {
    await using own = await startSender({ endpoints: [endpoint] })
    own.db.sqlite.run(
      "CREATE TRIGGER full BEFORE UPDATE ON webhooks BEGIN SELECT RAISE(ABORT, 'full'); END",
    )
    await own.add('pay_1')
    await own.pass(0)
    await own.pass(4_999)
    expect(receiver.received).toHaveLength(1)
    expect(own.events()).toEqual(['webhook-fault'])
    own.db.sqlite.run('DROP TRIGGER full')
    await own.pass(1)
    expect(new Set(receiver.ids()).size).toBe(1)
    expect(own.rows()).toMatchObject([{ state: 'delivered' }])
  })

  test('wildcards select the types that their names say', () => {
    expect(typesOf(['*'])).toEqual([...eventTypes])
    expect(typesOf(['order.*', 'network.paused'])).toEqual(
      eventTypes.filter((type) => /^order\.|^network\.paused/.test(type)),
    )
    expect(typesOf(['order.held', 'order.held'])).toEqual(['order.held'])
  })
})
