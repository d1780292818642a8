import { afterAll, beforeEach, describe, expect, test } from 'bun:test'
import { endpointOf, keyOf, type Sending, startSender } from '../harness/outbox'
import { type Received, secret, secretOf, startReceiver, verify } from '../harness/receiver'
import { until } from '../harness/world'

/** The sender of webhooks, with real receivers and a clock that the tests move. */

const receiver = startReceiver()
const other = startReceiver()
afterAll(() => Promise.all([receiver.stop(), other.stop()]))
beforeEach(() => {
  for (const each of [receiver, other]) {
    each.received.length = 0
    each.answer = undefined
  }
})

const hour = 3_600_000
const day = 24 * hour
const serials = (received: readonly Received[]) => received.map(({ body }) => body.data.serial)
const status = (code: number, headers: Record<string, string> = {}) =>
  new Response(null, { status: code, headers })
const start = (changes: Partial<Parameters<typeof startSender>[0]> = {}) =>
  startSender({ endpoints: [endpointOf(receiver.url)], ...changes })
const states = (own: Sending) => own.rows().map(({ state }) => state)

describe('a message', () => {
  test('the signature of a message is that of Standard Webhooks, and any change breaks it', async () => {
    await using own = await start()
    await own.add('pay_1', { type: 'delivery.failed', at: 1_700_000_000_000 })
    await own.pass(0)
    const [message] = receiver.received
    if (message === undefined) throw new Error('nothing arrived')
    expect(verify(message)).toEqual({
      type: 'delivery.failed',
      timestamp: '2023-11-14T22:13:20.000Z',
      data: { serial: 1 },
    })
    expect(message.headers).toMatchObject({
      'content-type': 'application/json',
      'webhook-id': expect.stringMatching(/^evt_[0-9a-f]{32}$/),
      'webhook-timestamp': String(Math.floor(own.clock.ms / 1000)),
    })
    expect(() => verify(message, secretOf(8))).toThrow()
    expect(() => verify({ ...message, text: message.text.replace('1', '2') })).toThrow()
    const headers = { ...message.headers, 'webhook-id': 'evt_other' }
    expect(() => verify({ ...message, headers })).toThrow()
    expect(states(own)).toEqual(['delivered'])
    expect(own.counts.get('delivered')).toBe(1)
  })

  test('during a rotation the new and the old secret both verify a message', async () => {
    const secrets = [keyOf(secretOf(9)), keyOf(secret)]
    await using own = await start({ endpoints: [endpointOf(receiver.url, { secrets })] })
    await own.add('pay_1')
    await own.pass(0)
    for (const key of [secretOf(9), secret])
      expect(verify(receiver.received[0] as Received, key)).toMatchObject({ data: { serial: 1 } })
    expect(() => verify(receiver.received[0] as Received, secretOf(8))).toThrow()
  })

  test('a message goes to the endpoints that take its type, each with an id of its own', async () => {
    const endpoints = [
      endpointOf(`${receiver.url}/orders`, { events: ['order.*'] }),
      endpointOf(`${receiver.url}/all`, { events: ['*'] }),
      endpointOf(`${receiver.url}/paid`, { events: ['payment.confirmed', 'budget.spent'] }),
    ]
    await using own = await start({ endpoints })
    for (const type of ['order.held', 'payment.confirmed', 'network.paused'] as const)
      await own.add('x', { type })
    await own.pass(0)
    const arrived = (path: string) =>
      receiver.received.filter((each) => each.path === path).map(({ body }) => body.type)
    expect(arrived('/orders')).toEqual(['order.held'])
    expect(arrived('/all')).toEqual(['order.held', 'payment.confirmed', 'network.paused'])
    expect(arrived('/paid')).toEqual(['payment.confirmed'])
    expect(new Set(receiver.ids()).size).toBe(5)
  })

  test('error: a message leaves after its event is on the disk', async () => {
    await using own = await start()
    await own.add('pay_1')
    const [asked, disk] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    own.db.sync = () => {
      asked.resolve()
      return disk.promise
    }
    const pass = own.pass(0)
    await Promise.race([asked.promise, pass])
    expect(receiver.received).toEqual([])
    disk.resolve()
    await pass
    expect(receiver.received).toHaveLength(1)
  })

  test('a message that ends while its sync runs is not sent again', async () => {
    await using own = await start()
    await own.add('pay_1')
    own.db.sync = async () => {
      own.db.sqlite.run("UPDATE webhooks SET state = 'delivered', ended_at = 1")
    }
    await own.pass(0)
    expect(receiver.received).toEqual([])
  })

  test('an event that is recorded twice is one message', async () => {
    await using own = await start()
    for (const _ of [1, 2]) await own.add('pay_1', { occurrence: 'block 7' })
    await own.pass(0)
    expect(receiver.received).toHaveLength(1)
  })
})

describe('an endpoint that fails', () => {
  test('a message is sent again with the same id, at growing intervals', async () => {
    await using own = await start()
    receiver.answer = () => status(400)
    await own.add('pay_1')
    await own.pass(0)
    const attempts = [1]
    // The waits are 5, 15 and 45 seconds.
    for (const ms of [4_999, 1, 14_999, 1, 44_999]) {
      await own.pass(ms)
      attempts.push(receiver.received.length)
    }
    expect(attempts).toEqual([1, 1, 2, 2, 3, 3])
    receiver.answer = undefined
    await own.pass(1)
    expect(new Set(receiver.ids()).size).toBe(1)
    const times = receiver.received.map(({ headers }) => Number(headers['webhook-timestamp']))
    expect(times.map((time) => time - (times[0] ?? 0))).toEqual([0, 5, 20, 65])
    for (const { headers, text } of receiver.received)
      expect([headers['webhook-signature'], text]).not.toContain(undefined)
    expect(own.rows()).toMatchObject([{ state: 'delivered', attempts: 4, last_status: 204 }])
    expect(Object.fromEntries(own.counts)).toEqual({ retried: 3, delivered: 1 })
  })

  test('messages about one subject keep their order, others do not wait', async () => {
    await using own = await start()
    let left = 2
    receiver.answer = ({ body }) => (body.data.serial === 1 && left-- > 0 ? status(500) : undefined)
    for (const subject of ['ord_1', 'ord_1', 'pay_2', 'ord_1']) await own.add(subject)
    await own.pass(0)
    expect(serials(receiver.received).toSorted()).toEqual([1, 3])
    await own.pass(5_000)
    expect(serials(receiver.received).at(-1)).toBe(1)
    await own.pass(15_000)
    expect(serials(receiver.received).slice(-3)).toEqual([1, 2, 4])
    expect(states(own)).toEqual(Array(4).fill('delivered'))
  })

  test('Retry-After is honoured up to an hour, by seconds or as a date', async () => {
    await using own = await start()
    const asked = [
      () => '120',
      () => new Date(own.clock.ms + 180_000).toUTCString(),
      () => '999999',
      () => 'soon',
    ]
    receiver.answer = () => {
      const value = asked.shift()?.()
      return value === undefined ? undefined : status(429, { 'retry-after': value })
    }
    await own.add('pay_1')
    await own.pass(0)
    const arrivals = [0]
    const begin = own.clock.ms
    while (receiver.received.length < 5) {
      const before = receiver.received.length
      await own.pass(1_000)
      if (receiver.received.length > before) arrivals.push((own.clock.ms - begin) / 1000)
    }
    const waits = arrivals.slice(1).map((at, i) => at - (arrivals[i] ?? 0))
    // A date has whole seconds. Without a usable value the fourth wait counts.
    expect(waits[0]).toBe(120)
    expect([179, 180]).toContain(waits[1] as number)
    expect(waits.slice(2)).toEqual([3_600, 135])
  })

  test('Retry-After holds back other messages of the endpoint, too', async () => {
    await using own = await start()
    receiver.answer = () => status(503, { 'retry-after': '60' })
    await own.add('pay_1')
    await own.pass(0)
    receiver.answer = undefined
    await own.add('pay_2')
    await own.pass(59_999)
    expect(receiver.received).toHaveLength(1)
    await own.pass(1)
    expect(states(own)).toEqual(['delivered', 'delivered'])
  })

  test('after five failures one message at a time tries the endpoint, and success ends that', async () => {
    await using own = await start()
    const together = Promise.withResolvers<void>()
    receiver.answer = async () => {
      if (receiver.received.length === 16) together.resolve()
      await together.promise
      return status(502)
    }
    for (let i = 0; i < 40; i++) await own.add(`pay_${i}`)
    await own.pass(0)
    // Each of the first four failures lets another message begin; the fifth one pauses.
    expect(receiver.received.length).toBeLessThanOrEqual(16 + 4)
    expect(own.events()).toEqual(['webhook-failing'])
    expect(own.logged[0]).toMatchObject({ level: 'warn', origin: receiver.url, status: 502 })
    const before = receiver.received.length
    await own.pass(4_999)
    expect(receiver.received).toHaveLength(before)
    await own.pass(1)
    expect(receiver.received).toHaveLength(before + 1)
    receiver.answer = undefined
    await own.pass(15_000)
    expect(own.events()).toEqual(['webhook-failing', 'webhook-recovered'])
    await own.pass(5 * 60_000)
    expect(states(own)).toEqual(Array(40).fill('delivered'))
  })

  test('a message is given up after a day, with a last attempt at the end', async () => {
    await using own = await start()
    receiver.answer = () => status(404)
    await own.add('pay_1')
    const begin = own.clock.ms
    await own.pass(0)
    while (own.clock.ms < begin + day - 60_000) await own.pass(60_000)
    expect(states(own)).toEqual(['waiting'])
    const attempts = receiver.received.length
    expect(attempts).toBeGreaterThan(12)
    expect(attempts).toBeLessThan(25)
    await own.pass(60_000)
    expect(receiver.received).toHaveLength(attempts + 1)
    await own.pass(10_000)
    expect(own.rows()).toMatchObject([{ state: 'failed', last_error: 'expired', last_status: 404 }])
    expect(own.logged.at(-1)).toMatchObject({
      event: 'webhook-lost',
      origin: receiver.url,
      reason: 'expired',
      count: 1,
    })
    expect(own.counts.get('expired')).toBe(1)
    const last = receiver.received.length
    await own.pass(day)
    expect(receiver.received).toHaveLength(last)
  })

  test('410 disables the endpoint, and a reload enables it again', async () => {
    await using own = await start()
    receiver.answer = () => status(410)
    await own.add('pay_1')
    await own.add('pay_1')
    await own.pass(0)
    expect(receiver.received).toHaveLength(1)
    expect(own.rows().map(({ state, last_error }) => [state, last_error])).toEqual([
      ['failed', 'gone'],
      ['failed', 'gone'],
    ])
    expect(own.logged.at(-1)).toMatchObject({
      level: 'error',
      event: 'webhook-disabled',
      givenUp: 1,
    })
    expect(own.counts.get('gone')).toBe(2)
    await own.add('pay_2')
    expect(own.rows()).toHaveLength(2)
    receiver.answer = undefined
    own.sender.apply([endpointOf(receiver.url)])
    await own.add('pay_3')
    await own.pass(0)
    expect(serials(receiver.received)).toEqual([1, 4])
  })

  test('a look for messages that ends after a 410 starts none of them', async () => {
    const found = Promise.withResolvers<void>()
    let looks = 0
    await using own = await start({
      due: (due) => async (query) => {
        const messages = await due(query)
        if (messages.length === 2 && ++looks === 1) await found.promise
        return messages
      },
    })
    const answer = Promise.withResolvers<Response>()
    receiver.answer = () => answer.promise
    await own.add('pay_1')
    await until('it arrived', () => receiver.received.length === 1)
    await own.add('pay_2')
    await until('a look has both', () => looks === 1)
    answer.resolve(status(410))
    await until('both are given up', () => states(own).every((state) => state === 'failed'))
    found.resolve()
    await own.sender.idle()
    expect(serials(receiver.received)).toEqual([1])
  })

  test('a slow endpoint does not hold back another one, and a stop ends its attempts', async () => {
    const endpoints = [endpointOf(receiver.url), endpointOf(other.url)]
    const own = await start({ endpoints })
    receiver.answer = () => new Promise(() => {})
    for (let i = 0; i < 50; i++) await own.add(`pay_${i}`)
    await until('the other one has all', () => other.received.length === 50)
    await until('all places are taken', () => receiver.received.length >= 16)
    // At most 16 at once.
    expect(receiver.received.length).toBe(16)
    await own.sender.stop(0)
    const slow = own.rows().filter(({ origin }) => origin === receiver.url)
    expect(slow.map(({ state, attempts }) => [state, attempts])).toEqual(
      Array(50).fill(['waiting', 0]),
    )
    own.db.close()
  })
})
