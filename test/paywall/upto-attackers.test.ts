import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import type { Authorization } from '../../db/Authorization'
import type { Config } from '../../src/config/Config'
import * as Facilitation from '../../src/protocol/Facilitation'
import { randomNonce, settlementOf } from '../harness/buyer'
import { setAutomine } from '../harness/chains'
import { charging, makeBody, post } from '../harness/facilitation'
import { jobOf, purposeOf } from '../harness/settlement'
import { isPostgres } from '../harness/test-ledger'
import type { Script } from '../harness/upstream'
import {
  answering,
  base,
  event,
  events,
  type ModelShop,
  openBuyer,
  readerOf,
  startModels,
  usage,
  type Wallet,
} from '../harness/upto-shop'
import { until } from '../harness/world'

/** Buyers by `upto` that want to harm others: the other buyers, the seller, the node. */

/**
 * Step of transfer rates. Rates are checked 192 times in a step, and a buyer that takes nothing for
 * 40 checks counts as stalled.
 */
const stepMs = 5_000

let shop: ModelShop
let payer: Wallet
beforeAll(async () => {
  const adjust = (config: Config): Config => ({
    ...config,
    facilitator: { ...config.facilitator, settlePerMinute: 1e6, uptoWithoutKeys: true },
    // The first blocks of a chain have a base fee at which many open transactions exceed the budget.
    networks: config.networks.map((each) => {
      const gasPerDayWei = { ...each.gasPerDayWei, gateway: 10n ** 21n, facilitator: 10n ** 21n }
      return { ...each, gasPerDayWei }
    }),
  })
  shop = await startModels({ adjust, transferRateMin: { stepMs } })
})
afterAll(() => shop.stop())
beforeEach(async () => {
  shop.clear()
  payer = await shop.wallet()
})

describe('requests that break the upstream, which cost nothing', () => {
  for (const [name, script] of [
    ['time out', () => {}],
    ['are answered 503', answering('{}', 503)],
  ] as const)
    test(`attack: requests that ${name}: do not stop the sales to others`, async () => {
      const wallets = [payer, await shop.wallet(), await shop.wallet()]
      const credentials = await Promise.all(
        [...wallets, ...wallets].map((signer) => shop.sign({ slug: 'quick', signer })),
      )
      shop.upstream.script = script
      const failed = await Promise.all(
        credentials.map((credential) => shop.pay(credential, { slug: 'quick' })),
      )
      for (const { status } of failed) expect([502, 504]).toContain(status)
      shop.upstream.script = answering(usage(7, 20))
      expect((await shop.buy({ slug: 'quick', buyer: 2 })).status).toBe(200)
    })
})

describe('a ceiling that the gateway has reserved', () => {
  test('attack: a ceiling that the gateway has reserved is not spent by a charge of the facilitator', async () => {
    const replied = shop.nextReply()
    const bought = shop.buy({ signer: payer })
    const upstream = await replied
    upstream.head(200, events)
    upstream.chunk(event('{"n":1}'))
    const read = readerOf(await bought)
    await read()
    const balance = await shop.tokensOf(payer.address)
    const network = shop.config.networks.find(({ id }) => id === base)
    if (network === undefined) throw new Error(`no ${base}`)
    const made = { scheme: 'upto', from: payer, amountAtomic: balance } as const
    const all = await makeBody(network, made)
    const drained = await post(`${shop.url}/settle`, all)
    expect([drained.status, drained.json.success]).not.toEqual([200, true])
    // What nothing has reserved may be spent.
    const ceiling = BigInt(String(shop.authorization().ceiling_atomic))
    const rest = await post(`${shop.url}/settle`, charging(all, balance - ceiling))
    expect(rest.json).toMatchObject({ success: true })
    upstream.chunk(event(usage(7, 20)))
    upstream.end()
    await shop.settles()
  })
})

describe('a charge of nothing by the facilitator', () => {
  // It watches for syncs of SQLite.
  test.skipIf(isPostgres)(
    'a charge of nothing is on the disk before its one success is answered',
    async () => {
      const network = shop.config.networks.find(({ id }) => id === base)
      if (network === undefined) throw new Error(`no ${base}`)
      const body = await makeBody(network, { scheme: 'upto', from: payer })
      const { db } = shop
      const { sync } = db
      let syncs = 0
      db.sync = async () => {
        await sync()
        syncs++
      }
      try {
        const { json } = await post(`${shop.url}/settle`, charging(body, 0))
        expect(json).toMatchObject({ success: true, amount: '0' })
        expect(syncs).toBe(1)
      } finally {
        db.sync = sync
      }
    },
  )
})

/**
 * Resolves after 60 checks of transfer rates. The gateway is in this process: when a busy machine
 * delays its timer, this timer is delayed, too.
 */
function stillForLong(): Promise<void> {
  return new Promise((resolve) => {
    let checks = 0
    const timer = setInterval(() => {
      checks++
      if (checks < 60) return
      clearInterval(timer)
      resolve()
    }, stepMs / 192)
  })
}

describe('a buyer that stands still until the upstream gives up', () => {
  const large = event(`{"text":"${'x'.repeat(1_000_000)}"}`)

  test('attack: a buyer that stops reading pays for what it has, like one that leaves', async () => {
    const replied = shop.nextReply()
    const buyer = openBuyer(shop.chat(), await shop.sign({ signer: payer }))
    const upstream = await replied
    upstream.head(200, events)
    buyer.stall()
    for (let count = 0; count < 16; count++) upstream.chunk(large)
    await stillForLong()
    // As a server does that could not send for a while.
    upstream.cut()
    buyer.readOn()
    await until('it is over', () => shop.authorization().state !== 'authorized')
    const { state, charge_atomic, ceiling_atomic } = shop.authorization()
    expect(buyer.got().length).toBeGreaterThan(1_000_000)
    expect([state, charge_atomic]).not.toEqual(['void', '0'])
    expect(charge_atomic).toBe(ceiling_atomic)
    await shop.settles()
    await buyer.leave()
  })

  test('a buyer that reads pays nothing when the upstream breaks off', async () => {
    const replied = shop.nextReply()
    const buyer = openBuyer(shop.chat(), await shop.sign({ signer: payer }))
    const upstream = await replied
    upstream.head(200, events)
    upstream.chunk(event('{"n":1}'))
    await until('it has a chunk', () => buyer.got().includes('{"n":1}'))
    // A slow upstream is not a slow buyer.
    await stillForLong()
    upstream.cut()
    await shop.becomes('void')
    await buyer.leave()
  })
})

describe('streams that fail after their buyer has a part of them', () => {
  const failing: Script = (_, reply) => {
    reply.head(200, events)
    reply.chunk(event('{"n":1}'))
    reply.chunk(event('{"error":{"message":"filtered"}}'))
    reply.end()
  }

  test('attack: streams that fail after a part are free five times, then one every two minutes', async () => {
    shop.upstream.script = failing
    for (let count = 0; count < 5; count++) {
      const response = await shop.buy({ signer: payer })
      expect([response.status, await response.text()]).toEqual([
        200,
        expect.stringContaining('{"n":1}'),
      ])
      await shop.becomes('void')
    }
    const credential = await shop.sign({ signer: payer })
    const refused = await shop.pay(credential)
    expect(refused.status).toBe(429)
    expect(await refused.json()).toMatchObject({ reason: 'upto_often_unpaid' })
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(60)
    expect(shop.upstream.requests).toHaveLength(5)
    // It does not stop others, and the same credential is good later.
    shop.upstream.script = answering(usage(7, 20))
    expect((await shop.buy({ buyer: 2 })).status).toBe(200)
    shop.advance(121_000)
    try {
      expect((await shop.pay(credential)).status).toBe(200)
    } finally {
      shop.advance(-121_000)
    }
  })
})

describe('a buyer that hardly reads an answer that was held', () => {
  const size = 12 * 1024 * 1024
  const isHeld = ({ headers }: Response) => headers.has('payment-response')
  const count = () => shop.rows('SELECT count(*) n FROM authorizations')[0]?.n

  test('attack: a buyer that hardly reads a held answer occupies its memory until the end', async () => {
    const { service } = shop.config
    const little = { ...service, bufferedMaxBytes: 16 * 1024 * 1024 }
    await shop.restart({ ...shop.config, service: little })
    try {
      shop.upstream.script = answering(`"${'x'.repeat(size)}"`)
      const before = count()
      const buyer = openBuyer(shop.chat(), await shop.sign({ signer: payer }))
      buyer.stall()
      await until('it is authorized', () => count() !== before)
      await shop.becomes('sent')
      await shop.settles()
      const other = await shop.buy({ buyer: 2 })
      expect(isHeld(other)).toBe(false)
      expect((await other.text()).length).toBe(size + 2)
      buyer.readOn()
      await until('it has all', () => buyer.got().length > size)
      await until('it is recorded', async () => {
        const next = await shop.buy({ buyer: 2 })
        expect((await next.text()).length).toBe(size + 2)
        return isHeld(next)
      })
      const last = count()
      const left = openBuyer(shop.chat(), await shop.sign({ signer: payer }))
      left.stall()
      await until('it is authorized', () => count() !== last)
      await shop.becomes('sent')
      await shop.settles()
      await left.leave()
      await until('it is free', async () => {
        const next = await shop.buy({ buyer: 2 })
        await next.text()
        return isHeld(next)
      })
    } finally {
      await shop.restart(shop.config)
    }
  })
})

function network() {
  const found = shop.config.networks.find(({ id }) => id === base)
  if (found === undefined) throw new Error(`no ${base}`)
  return found
}

/** What the gateway does with a ceiling of 1000. */
async function authorize(from: Wallet, validBefore = BigInt(Math.floor(shop.now() / 1000) + 300)) {
  const { settlement } = shop.app
  const terms = { scheme: 'upto' as const, from, amountAtomic: 1000n, validBefore }
  const body = JSON.stringify(await makeBody(network(), terms))
  const parsed = Facilitation.parse(new TextEncoder().encode(body))
  if (!('request' in parsed)) throw new Error('not read')
  const transfer = Facilitation.transferOf(parsed.request, 8453, 'verify')
  const receivedAt = shop.now()
  const options = { id: settlement.createId(), receivedAt, validUntil: receivedAt + 60_000 }
  return settlement.authorizations.authorize(transfer, purposeOf({ merchant: 'model' }), options)
}

describe('charges for other servers', () => {
  const sent = (product: string) =>
    shop
      .rows(`SELECT id FROM payments WHERE product = '${product}' AND state = 'broadcast'`)
      .map(({ id }) => String(id))

  test('attack: charges for other servers take eight places of a relayer, and wait behind all of our own', async () => {
    const { authorizations } = shop.app.settlement
    const wallets = await Promise.all(Array.from({ length: 16 }, () => shop.wallet()))
    const walletOf = (i: number) => wallets[i % 16] ?? payer
    const bodies = await Promise.all(
      Array.from({ length: 20 }, (_, i) =>
        makeBody(network(), { scheme: 'upto', from: walletOf(i), amountAtomic: 1000n }),
      ),
    )
    const settled: Promise<unknown>[] = []
    const charge = async (authorization: Authorization) => {
      const metered = await authorizations.charge(authorization, { amountAtomic: 7n, units: {} })
      settled.push(authorizations.settleCharge(metered, { waitMs: 60_000 }))
    }
    await setAutomine(shop.chain(), false)
    try {
      for (const body of bodies) settled.push(post(`${shop.url}/settle`, charging(body, 1)))
      await until('the share of others is taken', () => sent('facilitator').length >= 8)
      const own: string[] = []
      const end = BigInt(Math.floor(shop.now() / 1000) + 300)
      for (let i = 0; i < 120; i++) {
        // After those that have a place, the time of each ends before that of the one before it.
        const authorized = await authorize(walletOf(i), end - BigInt(i))
        if (authorized.kind !== 'authorized') throw new Error(authorized.kind)
        own.push(authorized.authorization.id)
        await charge(authorized.authorization)
        if (i < 56) await until(`charge ${i} is sent`, () => sent('gateway').length > i)
      }
      expect([sent('facilitator').length, sent('gateway').length]).toEqual([8, 56])
      const { settlement } = shop.app
      void settlement.run(jobOf(network()), { waitMs: 60_000 })
      await until('a job has a place beside them', async () => {
        const job = await settlement.job('refund:1')
        const hash = job?.transaction
        if (hash === undefined) return false
        return (await shop.chain().rpc('eth_getTransactionByHash', [hash])) !== null
      })
      const mined = own.slice(0, 56)
      await shop.chain().rpc('anvil_mine', ['0x1'])
      await until('the mined charges are recorded and the next are sent', () => {
        const ids = sent('gateway')
        return ids.length === 64 && !ids.some((id) => mined.includes(id))
      })
      expect(sent('facilitator')).toEqual([])
      expect(sent('gateway').toSorted()).toEqual(own.slice(-64).toSorted())
    } finally {
      await setAutomine(shop.chain(), true)
      await shop.chain().rpc('anvil_mine', ['0x1'])
    }
    for (const end of await Promise.all(settled)) {
      const { kind, json } = end as { kind?: string; json?: { success: boolean } }
      expect(kind ?? json?.success).toBe(kind === undefined ? true : 'confirmed')
    }
  })

  test('a relayer has 16 charges open after a node took no more of its transactions', async () => {
    const { authorizations } = shop.app.settlement
    const tap = shop.taps[base]
    if (tap === undefined) throw new Error('no tap')
    const settled: Promise<{ kind: string }>[] = []
    const wallets = await Promise.all(Array.from({ length: 8 }, () => shop.wallet()))
    const charge = async (count: number) => {
      for (let i = 0; i < count; i++) {
        const authorized = await authorize(wallets[i % 8] ?? payer)
        if (authorized.kind !== 'authorized') throw new Error(authorized.kind)
        const amount = { amountAtomic: 7n, units: {} }
        const metered = await authorizations.charge(authorized.authorization, amount)
        settled.push(authorizations.settleCharge(metered, { waitMs: 60_000 }))
      }
    }
    const mineAll = async () => {
      await setAutomine(shop.chain(), true)
      await shop.chain().rpc('anvil_mine', ['0x1'])
      const ends = await Promise.all(settled.splice(0))
      expect(new Set(ends.map(({ kind }) => kind))).toEqual(new Set(['confirmed']))
    }
    await setAutomine(shop.chain(), false)
    try {
      let refused = 0
      const hashes = new Set<unknown>()
      tap.intercept = ({ method, params: [raw] }) => {
        if (!method.startsWith('eth_sendRaw') || hashes.has(raw)) return undefined
        if (hashes.size < 20) return void hashes.add(raw)
        refused++
        const message = 'rejected due to 0x00 being identified as a spammer'
        return { error: { code: -32003, message } }
      }
      await charge(24)
      await until('the node has refused one', () => refused > 0)
      expect(sent('gateway').length).toBeGreaterThan(20)
      tap.intercept = undefined
      await mineAll()
      await setAutomine(shop.chain(), false)
      await charge(20)
      await until('16 of them are sent', () => sent('gateway').length === 16)
      // After further charges were simulated, these still wait.
      await charge(4)
      expect(sent('gateway')).toHaveLength(16)
    } finally {
      tap.intercept = undefined
      await mineAll()
    }
  })
})

describe('more answers than a relayer can settle in time', () => {
  test('attack: more answers than a relayer can settle in time are not started', async () => {
    const { settlement } = shop.app
    const opened: Authorization[] = []
    // Each payer may have eight, because it has not paid yet.
    const wallets = await Promise.all(Array.from({ length: 60 }, () => shop.wallet()))
    let refused: unknown
    // 16 transactions at a time for 30 s, each for a second or more; others may have half of the first.
    while (opened.length <= 472 && refused === undefined) {
      const outcome = await authorize(wallets[Math.floor(opened.length / 8)] ?? payer)
      if (outcome.kind === 'authorized') opened.push(outcome.authorization)
      else refused = outcome
    }
    expect(refused).toMatchObject({ kind: 'unavailable', retryAfterSeconds: 2 })
    // As many as one payer may have open by its ceilings, and more than merchants have by default.
    expect(opened.length).toBeGreaterThan(100)
    const nothing = { amountAtomic: 0n, units: {} }
    await Promise.all(opened.map((each) => settlement.authorizations.charge(each, nothing)))
    expect((await shop.buy({ signer: payer })).status).toBe(200)
  })

  test('attack: one payer takes eight places of a relayer, and more after it has paid', async () => {
    const { authorizations } = shop.app.settlement
    const nothing = { amountAtomic: 0n, units: {} }
    /** Places that the payer gets, at most nine. */
    const places = async () => {
      const outcomes = await Promise.all(Array.from({ length: 9 }, () => authorize(payer)))
      const opened = outcomes.flatMap((each) =>
        each.kind === 'authorized' ? [each.authorization] : [],
      )
      const other = await authorize(await shop.wallet())
      expect(other.kind).toBe('authorized')
      if (other.kind === 'authorized') opened.push(other.authorization)
      await Promise.all(opened.map((each) => authorizations.charge(each, nothing)))
      return opened.length - 1
    }
    expect(await places()).toBe(8)
    shop.upstream.script = answering(usage(7, 20))
    expect((await shop.buy({ signer: payer })).status).toBe(200)
    expect(await places()).toBe(9)
  })
})

describe('a payer whose charges cannot be settled', () => {
  const rows = (state: string) =>
    shop.rows(
      `SELECT id FROM authorizations WHERE payer = '${payer.address}' AND state = '${state}'`,
    )

  /** Ends five streams of a payer that has moved its money away. */
  async function fail() {
    const streams: Awaited<ReturnType<ModelShop['nextReply']>>[] = []
    const buyers: Promise<string>[] = []
    for (let count = 0; count < 5; count++) {
      const replied = shop.nextReply()
      buyers.push(shop.buy({ signer: payer }).then((response) => response.text()))
      const upstream = await replied
      upstream.head(200, events)
      upstream.chunk(event(usage(7, 20)))
      streams.push(upstream)
    }
    await shop.setBalance(payer.address, 100n)
    for (const upstream of streams) upstream.end()
    await Promise.all(buyers)
    await until('all have failed', () => shop.events('charge-failed').length === 5)
    expect(rows('metered')).toHaveLength(5)
    shop.clear()
  }

  test('attack: a ceiling that was being checked when another charge of its payer failed is refused', async () => {
    const replied = shop.nextReply()
    const first = shop.buy({ signer: payer })
    const upstream = await replied
    upstream.head(200, events)
    upstream.chunk(event(usage(7, 20)))
    await first
    const nonce = randomNonce()
    const credential = await shop.sign({ signer: payer, nonce })
    const { promise: released, resolve: release } = Promise.withResolvers<void>()
    const { promise: held, resolve: hold } = Promise.withResolvers<void>()
    const tap = shop.taps[base]
    if (tap === undefined) throw new Error(`no ${base}`)
    tap.intercept = async (call, forward) => {
      if (!JSON.stringify(call).includes(nonce.slice(2))) return forward()
      hold()
      await released
      return forward()
    }
    shop.upstream.script = answering(usage(7, 20))
    const second = shop.pay(credential)
    await held
    await shop.setBalance(payer.address, 100n)
    upstream.end()
    await until('it has failed', () => shop.events('charge-failed').length > 0)
    await shop.setBalance(payer.address, 10_000_000n)
    release()
    const response = await second
    expect([response.status, settlementOf(response).errorReason]).toEqual([
      402,
      'unsupported_scheme',
    ])
    expect(shop.upstream.requests).toHaveLength(1)
  })

  test('attack: a payer whose charges cannot be settled costs a sweep one attempt, however many there are', async () => {
    await fail()
    await shop.restart()
    await until('one is tried', () => shop.events('charge-failed').length > 0)
    await shop.restart()
    await until('one is tried again', () => shop.events('charge-failed').length > 1)
    expect(shop.events('charge-failed')).toHaveLength(2)
    await shop.setBalance(payer.address, 10_000_000n)
    await shop.restart()
    await until('all are settled', () => rows('sent').length === 5)
  })

  test('attack: charges of one payer that are over cost a sweep one read', async () => {
    await fail()
    const over = Number(shop.authorization().valid_before) + 1
    await shop.chain().rpc('evm_setNextBlockTimestamp', [over])
    await shop.chain().rpc('anvil_mine', ['0x1'])
    const before = shop.taps[base]?.calls.length
    shop.advance(over * 1000 + 1000 - shop.now())
    await shop.restart()
    await until('all are lost', () => rows('failed').length === 5)
    const words = payer.address.slice(2).toLowerCase()
    const reads = shop.taps[base]?.calls
      .slice(before)
      .filter((call) => JSON.stringify(call).includes(words))
    expect(reads).toHaveLength(1)
  })
})
