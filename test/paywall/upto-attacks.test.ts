import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { mine } from '../../src/demo/chains'
import { ask, payX402, randomNonce, settlementOf } from '../harness/buyer'
import { setAutomine } from '../harness/chains'
import { setSettleWait, untilEnded, untilFree } from '../harness/shop'
import type { Reply } from '../harness/upstream'
import {
  answering,
  base,
  body,
  costOf,
  event,
  events,
  json,
  long,
  type ModelShop,
  openBuyer,
  readerOf,
  startModels,
  usage,
  type Wallet,
} from '../harness/upto-shop'
import { until } from '../harness/world'

/** Buyers that want more than they pay for by the x402 scheme `upto`. */

let shop: ModelShop
let payer: Wallet
beforeAll(async () => {
  shop = await startModels()
})
afterAll(() => shop.stop())
beforeEach(async () => {
  shop.clear()
  payer = await shop.wallet()
})

const errorOf = (response: Response) => [response.status, settlementOf(response).errorReason]
/** A ceiling of 0.05 of the price of the route, so that twenty are a dollar. */
const large = { ceiling: 50_000n, accepted: { amount: '50000' } }

/** Holds every request at the upstream; `finish` ends them all. */
function holding() {
  const replies: Reply[] = []
  shop.upstream.script = (_, reply) => {
    replies.push(reply)
    reply.head(200, events)
    reply.chunk(event('{"n":1}'))
  }
  return {
    replies,
    finish() {
      for (const reply of replies.splice(0)) {
        reply.chunk(event(usage(7, 20)))
        reply.end()
      }
    },
  }
}

describe('many streams of one payer at once', () => {
  /** What is open of a payer never exceeds its limit; all that passed is paid. */
  async function most(count: number, expected: number) {
    const upstream = holding()
    const credentials = await Promise.all(
      Array.from({ length: count }, () => shop.sign({ signer: payer, ...large })),
    )
    const before = await shop.tokensOf(payer.address)
    const all = await Promise.all(credentials.map((credential) => shop.pay(credential)))
    const good = all.filter(({ status }) => status === 200)
    expect(good).toHaveLength(expected)
    expect(upstream.replies).toHaveLength(expected)
    const others = all.filter(({ status }) => status !== 200)
    for (const { status, headers } of others) {
      expect([status, headers.has('retry-after')]).toEqual([503, true])
    }
    upstream.finish()
    await Promise.all(good.map((response) => response.text()))
    const paid = BigInt(expected * costOf(7, 20))
    await until('all are paid', async () => (await shop.tokensOf(payer.address)) === before - paid)
    // Nothing stays reserved: the refused ones go now.
    const refused = credentials.filter((_, index) => all[index]?.status !== 200)
    const next = await Promise.all(refused.slice(0, expected).map((each) => shop.pay(each)))
    expect(next.map(({ status }) => status)).toEqual(next.map(() => 200))
    upstream.finish()
    await Promise.all(next.map((response) => response.text()))
  }

  test("attack: unsettled_max bounds the sum of a payer's ceilings", async () => {
    shop.upstream.script = answering(usage(7, 20))
    // A payer that never paid has fewer places of the relayer.
    expect((await shop.buy({ signer: payer })).status).toBe(200)
    await most(26, 20)
  })

  test("attack: the balance bounds the sum of a payer's ceilings", async () => {
    await shop.setBalance(payer.address, 160_000n)
    await most(6, 3)
  })

  test("attack: the allowance bounds the sum of a payer's ceilings", async () => {
    await shop.setAllowance(payer.address, 160_000n)
    await most(6, 3)
  })

  test('attack: exact and upto at once, with money for one: one is served', async () => {
    await shop.setBalance(payer.address, 60_000n)
    const { required } = await ask(shop.chat(), { method: 'POST' })
    for (let round = 0; round < 4; round++) {
      await shop.setBalance(payer.address, 60_000n)
      shop.upstream.requests.length = 0
      const upstream = holding()
      const upto = shop.pay(await shop.sign({ signer: payer, ...large }))
      const payment = await payX402(required, payer, { network: base, method: 'eip3009' })
      const exact = shop.pay({ 'payment-signature': payment })
      const both = await Promise.all([upto, exact])
      expect(both.filter(({ status }) => status === 200).length).toBeLessThan(2)
      upstream.finish()
      await Promise.all(both.map((response) => response.text()))
      const open = "SELECT id FROM authorizations WHERE state IN ('authorized', 'metered')"
      await until('all are settled', () => shop.rows(open).length === 0)
    }
    const failed = shop.rows(
      `SELECT * FROM authorizations WHERE payer = '${payer.address}' AND failed_at IS NOT NULL`,
    )
    expect(failed).toEqual([])
  })

  test('attack: a balance that was read before a payment gives no room after it', async () => {
    await shop.setBalance(payer.address, 60_000n)
    const { required } = await ask(shop.chat(), { method: 'POST' })
    const nonce = randomNonce()
    const credential = await shop.sign({ signer: payer, nonce, ...large })
    const { promise: released, resolve: release } = Promise.withResolvers<void>()
    let answered = 0
    const tap = shop.taps[base]
    if (tap === undefined) throw new Error(`no ${base}`)
    tap.intercept = async (call, forward) => {
      // A read of the nonce names the word of its bit.
      if (!JSON.stringify(call).includes(nonce.slice(2, 60))) return forward()
      const answer = await forward()
      answered++
      await released
      return answer
    }
    shop.upstream.script = answering(usage(7, 20))
    const late = shop.pay(credential)
    // The settling call, and the reads.
    await until('the balance is read', () => answered === 2)
    const payment = await payX402(required, payer, { network: base, method: 'eip3009' })
    const exact = await shop.pay({ 'payment-signature': payment })
    expect(exact.status).toBe(200)
    await exact.text()
    expect(await shop.tokensOf(payer.address)).toBe(10_000n)
    release()
    expect((await late).status).toBe(503)
    tap.intercept = undefined
    // What was held for the late answer is released with it.
    await shop.setBalance(payer.address, 60_000n)
    await untilFree(() => shop.pay(credential))
    expect((await shop.tokensOf(payer.address)) < 60_000n).toBe(true)
  })

  test('the ceilings of others do not delay a charge when the balance falls', async () => {
    await shop.setBalance(payer.address, 100_000n)
    const upstream = holding()
    const first = await shop.buy({ signer: payer, ...large })
    const second = await shop.buy({ signer: payer, ...large })
    await shop.setBalance(payer.address, 2_000n)
    const [reply] = upstream.replies
    reply?.chunk(event(usage(7, 20)))
    reply?.end()
    await first.text()
    await until(
      'the first is paid',
      async () => (await shop.tokensOf(payer.address)) === 2_000n - BigInt(costOf(7, 20)),
    )
    upstream.finish()
    await second.text()
    await until(
      'both are paid',
      async () => (await shop.tokensOf(payer.address)) === 2_000n - 2n * BigInt(costOf(7, 20)),
    )
  })
})

describe('the same credential', () => {
  test('attack: one credential at many requests at once is served once', async () => {
    const before = await shop.paid()
    const credential = await shop.sign({ signer: payer })
    shop.upstream.script = answering(usage(7, 20))
    const all = await Promise.all(Array.from({ length: 8 }, () => shop.pay(credential)))
    const statuses = all.map(({ status }) => status).sort()
    expect(statuses.filter((status) => status === 200)).toHaveLength(1)
    for (const status of statuses) expect([200, 402, 409]).toContain(status)
    expect(shop.upstream.requests).toHaveLength(1)
    await untilEnded(shop)
    expect(errorOf(await untilFree(() => shop.pay(credential)))).toEqual([
      402,
      'permit2_invalid_nonce',
    ])
    expect(await shop.paid()).toBe(before + BigInt(costOf(7, 20)))
  })

  test('attack: the same credential is refused during its stream, after it, and for another request', async () => {
    const upstream = holding()
    const credential = await shop.sign({ signer: payer })
    const response = await shop.pay(credential)
    for (const sent of [body, body.replace('m"', 'n"')])
      expect((await shop.pay(credential, { body: sent })).status).toBe(409)
    upstream.finish()
    await response.text()
    await shop.settles()
    for (const sent of [body, body.replace('m"', 'n"')])
      expect((await shop.pay(credential, { body: sent })).status).toBe(402)
    expect(shop.upstream.requests).toHaveLength(1)
  })

  test('the same credential waits while its charge is pending, and gets the answer once', async () => {
    const credential = await shop.sign({ signer: payer })
    shop.upstream.script = answering(usage(7, 20))
    await setAutomine(shop.chain(), false)
    await setSettleWait(shop, 2)
    try {
      const first = await shop.pay(credential)
      expect(first.status).not.toBe(200)
      expect(first.status).not.toBe(402)
      expect(await first.text()).not.toContain('completion_tokens')
    } finally {
      await setSettleWait(shop, shop.config.service.settleWaitSeconds)
      await setAutomine(shop.chain(), true)
    }
    const other = shop.pay(credential, { body: body.replace('m"', 'n"') })
    expect((await other).status).not.toBe(200)
    await mine(shop.chain())
    let again = await shop.pay(credential)
    await until('it is settled', async () => {
      if (again.status === 503 || again.status === 409) again = await shop.pay(credential)
      return again.status !== 503 && again.status !== 409
    })
    expect([again.status, await again.text()]).toEqual([200, usage(7, 20)])
    await until('it is recorded', () => shop.payment().delivery === 'delivered')
    expect(errorOf(await shop.pay(credential))).toEqual([402, 'permit2_invalid_nonce'])
    // The ceiling no longer reserves money.
    await shop.setBalance(payer.address, 12_000n)
    expect((await shop.buy({ signer: payer })).status).toBe(200)
  })

  test('the credential of a buyer that left during the settlement fetches the answer, once', async () => {
    const credential = await shop.sign({ signer: payer })
    shop.upstream.script = answering(usage(7, 20))
    await setAutomine(shop.chain(), false)
    const buyer = openBuyer(shop.chat(), credential)
    await shop.settles('broadcast')
    await buyer.leave()
    await setAutomine(shop.chain(), true)
    await mine(shop.chain())
    await shop.settles()
    const before = await shop.paid()
    let again = await shop.pay(credential)
    await until('it is free', async () => {
      if (again.status === 409) again = await shop.pay(credential)
      return again.status !== 409
    })
    expect([again.status, await again.text()]).toEqual([200, usage(7, 20)])
    expect(settlementOf(again)).toMatchObject({ amount: String(costOf(7, 20)) })
    expect(await shop.paid()).toBe(before)
    await until('it is recorded', () => shop.payment().delivery === 'delivered')
    expect((await shop.pay(credential)).status).toBe(402)
  })

  test('a credential whose answer cannot be made again gives a redeem token', async () => {
    const credential = await shop.sign({ signer: payer })
    const replied = shop.nextReply()
    const buyer = openBuyer(shop.chat(), credential)
    const upstream = await replied
    await buyer.leave()
    upstream.send(200, long(usage(7, 20)), json)
    await shop.settles()
    shop.upstream.script = answering('{}', 500)
    let failed = await shop.pay(credential)
    await until('it is free', async () => {
      if (failed.status === 409) failed = await shop.pay(credential)
      return failed.status !== 409
    })
    expect(failed.status).toBe(502)
    const { redeem } = (await failed.json()) as { redeem: { token: string; attempts: number } }
    expect(redeem.attempts).toBe(5)
    shop.upstream.script = answering(usage(9, 9))
    const redeemed = await shop.pay({ 'payment-redeem': redeem.token })
    expect([redeemed.status, await redeemed.text()]).toEqual([200, usage(9, 9)])
    await until('it is recorded', () => shop.payment().delivery === 'delivered')
    expect((await shop.pay({ 'payment-redeem': redeem.token })).status).not.toBe(200)
    expect((await shop.pay(credential)).status).toBe(402)
    expect(await shop.tokensOf(payer.address)).toBe(10_000_000n - BigInt(costOf(7, 20)))
  })
})

describe('an answer that its buyer has not got', () => {
  /** The answer to a buyer that left while the upstream worked; its charge is settled. */
  async function lost(credential: Record<string, string>, answer: (upstream: Reply) => void) {
    const replied = shop.nextReply()
    const buyer = openBuyer(shop.chat(), credential)
    const upstream = await replied
    await buyer.leave()
    answer(upstream)
    await shop.settles()
    shop.upstream.script = answering(usage(7, 1000))
  }
  const whole = (text: string) => (upstream: Reply) => upstream.send(200, text, json)
  const streamed = (upstream: Reply) => {
    upstream.head(200, events)
    upstream.chunk(event('{"n":1}'))
    upstream.chunk(event(usage(7, 20)))
    upstream.end()
  }
  const free = (credential: Record<string, string>, headers = {}) =>
    untilFree(() => shop.pay(credential, { headers }))

  for (const [name, answer, text] of [
    ['a whole answer', whole(usage(7, 20)), usage(7, 20)],
    ['a stream', streamed, event('{"n":1}') + event(usage(7, 20))],
  ] as const)
    test(`attack: ${name} is sent again as it was charged, and is not made again`, async () => {
      for (const key of [{}, { 'idempotency-key': `lost-${text.length}` }]) {
        shop.upstream.requests.length = 0
        const credential = { ...(await shop.sign({ signer: payer })), ...key }
        await lost(credential, answer)
        const again = await free(credential)
        // With the key a stored stream was delivered: the key repeats it.
        const got =
          again.status === 200
            ? again
            : await shop.pay({ ...(await shop.sign({ signer: payer })), ...key })
        expect([got.status, await got.text()]).toEqual([200, text])
        expect(got.headers.get('content-type')).toBe(
          name === 'a stream' ? 'text/event-stream' : 'application/json',
        )
        await until('it is recorded', () => shop.payment().delivery === 'delivered')
        expect((await shop.pay(credential, { headers: {} })).status).not.toBe(409)
        expect(shop.upstream.requests).toHaveLength(1)
      }
      expect(await shop.tokensOf(payer.address)).toBe(10_000_000n - 2n * BigInt(costOf(7, 20)))
    })

  test('an answer that was too long to be kept is made again, on credit where it costs more', async () => {
    const credential = await shop.sign({ signer: payer })
    await lost(credential, whole(long(usage(7, 20))))
    const again = await free(credential)
    expect([again.status, await again.text()]).toEqual([200, usage(7, 1000)])
    expect(shop.upstream.requests).toHaveLength(2)
    expect(await shop.tokensOf(payer.address)).toBe(10_000_000n - BigInt(costOf(7, 20)))
  })

  test('an answer that is made again is sent when it costs no more, as a stream or whole', async () => {
    for (const [answer, text] of [
      [answering(usage(7, 19)), usage(7, 19)],
      [answering(event(usage(7, 20)), 200, events), event(usage(7, 20))],
    ] as const) {
      const credential = await shop.sign({ signer: payer })
      await lost(credential, whole(long(usage(7, 20))))
      shop.upstream.script = answer
      const again = await free(credential)
      expect([again.status, await again.text()]).toEqual([200, text])
    }
  })

  test('attack: a charge does not pay for the request with other headers', async () => {
    const headers = { accept: 'text/csv, application/json;q=0.5', 'accept-language': 'de' }
    const credential = { ...(await shop.sign({ signer: payer })), ...headers }
    await lost(credential, whole(usage(7, 20)))
    for (const other of [
      { accept: '*/*' },
      { 'accept-language': 'en' },
      { 'content-language': 'de' },
    ]) {
      const refused = await free(credential, other)
      expect([refused.status, await refused.text()]).toEqual([
        409,
        expect.stringContaining('Accept-Language'),
      ])
    }
    // The content type is always JSON at the upstream, and the encoding is not forwarded.
    const same = {
      accept: 'Text/CSV,application/json; q=0.5',
      'content-type': 'text/plain',
      'accept-encoding': 'br',
    }
    const again = await free(credential, same)
    expect([again.status, await again.text()]).toEqual([200, usage(7, 20)])
    expect(shop.upstream.requests).toHaveLength(1)
  })
})

describe('an idempotency key', () => {
  let serial = 0
  const keyed = () => ({ 'idempotency-key': `key-${++serial}` })
  const again = async (headers: Record<string, string>, sent = body) =>
    shop.pay(await shop.sign({ signer: payer, body: sent }), { headers, body: sent })

  test('an idempotency key replays a whole answer for nothing', async () => {
    const headers = keyed()
    shop.upstream.script = answering(usage(7, 20))
    const first = await again(headers)
    expect([first.status, await first.text()]).toEqual([200, usage(7, 20)])
    await until('it is recorded', () => shop.payment().delivery === 'delivered')
    const second = await again(headers)
    expect([second.status, await second.text()]).toEqual([200, usage(7, 20)])
    expect(second.headers.get('idempotency-replayed')).toBe('true')
    expect(settlementOf(second)).toMatchObject({ amount: String(costOf(7, 20)) })
    const other = await again(headers, body.replace('m"', 'n"'))
    expect(other.status).toBe(409)
    expect(shop.upstream.requests).toHaveLength(1)
    expect(await shop.tokensOf(payer.address)).toBe(10_000_000n - BigInt(costOf(7, 20)))
  })

  test('an idempotency key replays a stream, also of a buyer that left', async () => {
    for (const leaves of [false, true]) {
      const headers = keyed()
      const credential = { ...headers, ...(await shop.sign({ signer: payer })) }
      const replied = shop.nextReply()
      const buyer = openBuyer(shop.chat(), credential)
      const upstream = await replied
      upstream.head(200, events)
      upstream.chunk(event('{"n":1}'))
      await until('it has a chunk', () => buyer.got().includes('{"n":1}'))
      for (const sent of [body, body.replace('m"', 'n"')])
        expect((await again(headers, sent)).status).toBe(409)
      if (leaves) await buyer.leave()
      upstream.chunk(event(usage(7, 20)))
      upstream.end()
      await shop.settles()
      let replay = await again(headers)
      await until('it is stored', async () => {
        if (replay.status === 409) replay = await again(headers)
        return replay.status !== 409
      })
      expect([replay.status, await replay.text()]).toEqual([
        200,
        event('{"n":1}') + event(usage(7, 20)),
      ])
      expect((await again(headers, body.replace('m"', 'n"'))).status).toBe(409)
      await buyer.leave()
    }
    expect(shop.upstream.requests).toHaveLength(2)
    expect(await shop.tokensOf(payer.address)).toBe(10_000_000n - 2n * BigInt(costOf(7, 20)))
  })

  test('attack: the key of a buyer that left before the first byte buys one answer', async () => {
    const headers = keyed()
    const credential = await shop.sign({ signer: payer })
    const replied = shop.nextReply()
    const buyer = openBuyer(shop.chat(), { ...headers, ...credential })
    const upstream = await replied
    await buyer.leave()
    upstream.head(200, events)
    upstream.chunk(event(usage(7, 20)))
    upstream.end()
    await shop.settles()
    const replay = async () => (await again(headers)).text()
    await until('it is stored', async () => (await replay()) === event(usage(7, 20)))
    expect((await shop.pay(credential)).status).toBe(402)
    expect(shop.upstream.requests).toHaveLength(1)
    expect(shop.payment()).toMatchObject({ delivery: 'delivered', attempts: 1, truncated: 0 })
  })

  test('attack: the same key of another payer does not show the answer', async () => {
    const headers = keyed()
    shop.upstream.script = answering(usage(7, 20))
    expect((await again(headers)).status).toBe(200)
    payer = await shop.wallet()
    shop.upstream.script = answering(usage(1, 1))
    expect(await (await again(headers)).text()).toBe(usage(1, 1))
  })

  test('attack: a key with a forged signature does not continue a charge', async () => {
    const headers = keyed()
    const credential = await shop.sign({ signer: payer })
    const { 'payment-signature': value = '' } = credential
    const sent = JSON.parse(atob(value))
    sent.payload.signature = `0x${'11'.repeat(64)}1b`
    const forged = { 'payment-signature': btoa(JSON.stringify(sent)) }
    const tap = shop.taps[base]
    shop.upstream.script = (_, reply) => {
      if (tap) tap.intercept = () => new Response('away', { status: 503 })
      reply.send(200, usage(7, 20), json)
    }
    expect((await shop.pay(credential, { headers })).status).toBe(503)
    expect(shop.authorization().state).toBe('metered')
    if (tap) tap.intercept = undefined
    shop.upstream.script = answering(usage(7, 20))
    const stolen = await shop.pay(forged, { headers })
    expect(await stolen.text()).not.toContain('completion_tokens')
    expect(errorOf(stolen)).toEqual([402, 'invalid_permit2_signature'])
  })
})

/** What the upstream says of its use, and what that costs; `missing` is the ceiling. */
const says: readonly (readonly [string, string, number | 'missing'])[] = [
  ['negative', usage(-1, 5), 'missing'],
  ['fractional', usage(1.5, 5), 'missing'],
  ['huge', '{"usage":{"prompt_tokens":1e30,"completion_tokens":1}}', 'missing'],
  ['text', '{"usage":{"prompt_tokens":"5","completion_tokens":1}}', 'missing'],
  ['missing', '{"choices":[]}', 'missing'],
  ['half', '{"usage":{"prompt_tokens":5}}', 'missing'],
  ['empty', '', 'missing'],
  ['another model', `{"model":"other",${usage(7, 20).slice(1)}`, costOf(7, 20)],
  ['above the ceiling', usage(9_000_000, 9_000_000), 'missing'],
]

describe('usage that is', () => {
  for (const [name, text, cost] of says)
    test(`attack: usage that is ${name}: is charged within the ceiling, by missing = max and base`, async () => {
      shop.upstream.script = answering(text)
      const response = await shop.buy({ signer: payer })
      expect([response.status, await response.text()]).toEqual([200, text])
      const ceiling = Number(shop.authorization().ceiling_atomic)
      const charged = cost === 'missing' ? ceiling : cost
      expect(settlementOf(response)).toMatchObject({ amount: String(charged) })
      const lenient = await shop.buy({ signer: payer, slug: 'patient' })
      const least = name === 'above the ceiling' ? ceiling : cost === 'missing' ? 500 : cost
      expect(settlementOf(lenient)).toMatchObject({ amount: String(least) })
      const paid = BigInt(charged + least)
      expect(await shop.tokensOf(payer.address)).toBe(10_000_000n - paid)
    })

  const overrides: readonly (readonly [string | undefined, number])[] = [
    ['{"amount":"1000"}', 1000],
    ['{"amount":"50%"}', 25_000],
    ['{"amount":"$0.01"}', 10_000],
    ['{"amount":"60000"}', 50_000],
    ['{"amount":"-1"}', 50_000],
    ['{"amount":"1000%"}', 50_000],
    ['nonsense', 50_000],
    [undefined, 50_000],
    ['{"amount":"0"}', 0],
  ]
  for (const [header, cost] of overrides)
    test(`a charge that the upstream names as ${header} costs ${cost}, and the header is not shown`, async () => {
      const named = header === undefined ? {} : { 'settlement-overrides': header }
      shop.upstream.script = answering('{}', 200, { ...json, ...named })
      const response = await shop.buy({ signer: payer, slug: 'named' })
      expect(response.status).toBe(200)
      expect(response.headers.has('settlement-overrides')).toBe(false)
      expect(settlementOf(response)).toMatchObject({ amount: String(cost) })
      expect(await shop.tokensOf(payer.address)).toBe(10_000_000n - BigInt(cost))
    })
})

test('a whole answer of a buyer that is slow to read is charged before its first byte', async () => {
  shop.upstream.script = answering(usage(7, 20))
  const credential = await shop.sign({ signer: payer })
  const response = await shop.pay(credential)
  expect(await shop.tokensOf(payer.address)).toBe(10_000_000n - BigInt(costOf(7, 20)))
  expect(await readerOf(response)()).toBe(usage(7, 20))
})
