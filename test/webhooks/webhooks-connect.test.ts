import { afterAll, beforeEach, describe, expect, test } from 'bun:test'
import { certificate } from '../harness/certificate'
import { endpointOf, type Sending, startSender } from '../harness/outbox'
import { type Received, startReceiver, verify } from '../harness/receiver'

/** Where the sender of webhooks may connect to, and what it reads of an answer. */

const { key, cert } = certificate('hooks.test')
const plain = startReceiver()
const secure = startReceiver({ tls: { key, cert } })
afterAll(() => Promise.all([plain.stop(), secure.stop()]))
beforeEach(() => {
  for (const each of [plain, secure]) {
    each.received.length = 0
    each.answer = undefined
  }
})

const portOf = (url: string) => new URL(url).port
const named = `https://hooks.test:${portOf(secure.url)}/in?token=a`

async function sendOne(options: Parameters<typeof startSender>[0]): Promise<Sending> {
  const own = await startSender(options)
  await own.add('pay_1')
  await own.pass(0)
  return own
}
const ends = (own: Sending) => own.rows().map((row) => [row.state, row.last_status, row.last_error])

describe('a private address', () => {
  for (const url of [
    plain.url,
    `http://localhost:${portOf(plain.url)}`,
    `http://[::ffff:127.0.0.1]:${portOf(plain.url)}`,
    'http://169.254.169.254/latest/meta-data',
    'http://[fd00:ec2::254]/latest',
  ])
    test(`error: ${url.replace(/:\d+$/, '')} gets nothing without allow_private`, async () => {
      await using own = await sendOne({ endpoints: [endpointOf(url, { allowPrivate: false })] })
      expect(ends(own)).toEqual([['waiting', null, 'refused-address']])
      expect(plain.received).toEqual([])
    })

  test('a name is resolved once, and the connection goes to the address that was checked', async () => {
    const answers = [['127.0.0.1'], ['127.0.0.1', '10.0.0.1']]
    const asked: string[] = []
    await using own = await sendOne({
      endpoints: [endpointOf(named)],
      posting: {
        ca: cert,
        resolve: async (name) => {
          asked.push(name)
          return answers.shift() ?? []
        },
      },
    })
    expect(ends(own)).toEqual([['delivered', 204, null]])
    const [message] = secure.received
    expect(message?.headers.host).toBe(`hooks.test:${portOf(secure.url)}`)
    expect(verify(message as Received)).toMatchObject({ data: { serial: 1 } })
    expect(asked).toEqual(['hooks.test'])
  })

  test('error: a name that turns to a private address later gets nothing', async () => {
    let addresses = ['127.0.0.1']
    const endpoint = endpointOf(named, { allowPrivate: true })
    await using own = await sendOne({
      endpoints: [endpoint],
      posting: { ca: cert, resolve: async () => addresses },
    })
    expect(secure.received).toHaveLength(1)
    // Without the permission, after the cached answer of the resolver is old.
    addresses = ['127.0.0.1', '::1', '::ffff:127.0.0.1', '10.1.2.3']
    own.sender.apply([{ ...endpoint, allowPrivate: false }])
    await own.add('pay_2')
    await own.pass(31_000)
    expect(secure.received).toHaveLength(1)
    expect(ends(own)[1]).toEqual(['waiting', null, 'refused-address'])
  })

  test('error: the certificate must be of the name', async () => {
    const wrong = named.replace('hooks.test', 'other.test')
    await using own = await sendOne({
      endpoints: [endpointOf(wrong)],
      posting: { ca: cert, resolve: async () => ['127.0.0.1'] },
    })
    expect(ends(own)).toEqual([['waiting', null, expect.stringMatching(/^connect /)]])
    expect(secure.received).toEqual([])
  })
})

describe('an answer', () => {
  test('error: a redirect is a failure and is not followed', async () => {
    plain.answer = () => Response.redirect(`${secure.url}/other`, 307)
    await using own = await sendOne({ endpoints: [endpointOf(plain.url)] })
    expect(ends(own)).toEqual([['waiting', 307, null]])
    expect(secure.received).toEqual([])
  })

  test('a body without an end is not read', async () => {
    let isCancelled = false
    const { promise: ended, resolve } = Promise.withResolvers<void>()
    plain.answer = () =>
      new Response(
        new ReadableStream({
          pull: (controller) => controller.enqueue(new Uint8Array(65_536)),
          cancel() {
            isCancelled = true
            resolve()
          },
        }),
      )
    await using own = await sendOne({ endpoints: [endpointOf(plain.url)] })
    expect(ends(own)).toEqual([['delivered', 200, null]])
    await ended
    expect(isCancelled).toBe(true)
  })

  test('error: an attempt that takes too long is a failure, like a broken connection', async () => {
    plain.answer = () => new Promise(() => {})
    const endpoints = [endpointOf(plain.url)]
    await using own = await sendOne({ endpoints, posting: { timeoutMs: 20 } })
    expect(ends(own)).toEqual([['waiting', null, 'timeout']])
    await using refused = await sendOne({ endpoints: [endpointOf('http://127.0.0.1:1')] })
    expect(ends(refused)).toEqual([['waiting', null, expect.stringMatching(/^connect /)]])
    await using unnamed = await sendOne({
      endpoints: [endpointOf(named)],
      posting: { resolve: () => Promise.reject(Object.assign(new Error(), { code: 'ENOTFOUND' })) },
    })
    expect(ends(unnamed)).toEqual([['waiting', null, 'connect ENOTFOUND']])
  })

  test('a log line has the origin of the endpoint and no path', async () => {
    const url = 'http://127.0.0.1:1/path-s3cret?token=query-s3cret'
    await using own = await startSender({ endpoints: [endpointOf(url)] })
    for (let i = 0; i < 20; i++) await own.add(`pay_${i}`)
    await own.pass(0)
    await own.pass(86_400_000)
    await own.pass(10_000)
    expect(own.events()).toEqual(['webhook-failing', 'webhook-lost'])
    const text = JSON.stringify(own.logged)
    expect(text).toContain('http://127.0.0.1:1')
    expect(text).not.toContain('s3cret')
    expect(JSON.stringify(own.rows())).not.toContain('s3cret')
  })
})
