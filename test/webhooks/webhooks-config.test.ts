import { describe, expect, test } from 'bun:test'
import { states } from '../../db/Order'
import { needsRestart } from '../../src/config/restart'
import { eventTypes } from '../../src/protocol/Webhook'
import { named, read, small } from '../harness/config'
import { secret, secretOf } from '../harness/receiver'

/** `[[webhooks]]` in merchants.toml. */

const usual = {
  url: '"https://hooks.example.com/in?token=abc"',
  events: '["payment.confirmed", "order.*"]',
  secret: `"${secret}"`,
}
const entry = (changes: Record<string, string | undefined> = {}) =>
  `\n[[webhooks]]\n${Object.entries({ ...usual, ...changes })
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => `${key} = ${value}`)
    .join('\n')}\n`
const parsed = (...entries: string[]) => {
  const { config, faults } = read(small + entries.join(''))
  if (config === undefined) throw new Error(faults.map(({ message }) => message).join('\n'))
  return config
}
const faultsOf = (...entries: string[]) => {
  const text = small + entries.join('')
  return { text, faults: read(text).faults }
}

test('an endpoint is read, its id is of its URL only', () => {
  const [endpoint] = parsed(entry()).webhooks
  expect(endpoint).toEqual({
    id: expect.stringMatching(/^[0-9a-f]{16}$/),
    url: new URL('https://hooks.example.com/in?token=abc'),
    events: ['payment.confirmed', 'order.*'],
    secrets: [new Uint8Array(32).fill(7)],
    allowPrivate: false,
  })
  const [other] = parsed(entry({ events: '["*"]', secret: `"${secretOf(8)}"` })).webhooks
  expect(other?.id).toBe(endpoint?.id as string)
  expect(parsed().webhooks).toEqual([])
})

test('several secrets for a rotation, a private address by permission', () => {
  const [endpoint] = parsed(
    entry({
      url: '"http://127.0.0.1:9"',
      allow_private: 'true',
      secret: `["${secretOf(8)}", "${secret}"]`,
    }),
  ).webhooks
  expect(endpoint?.secrets.map(([byte]) => byte)).toEqual([8, 7])
  expect(endpoint?.allowPrivate).toBe(true)
})

test('a change of the endpoints needs no restart', () => {
  expect(needsRestart(parsed(entry()), parsed())).toEqual([])
})

test('every state of an order has a type of event', () => {
  const types = eventTypes.filter((type) => type.startsWith('order.'))
  expect(types.toSorted()).toEqual(states.map((state) => `order.${state}` as const).toSorted())
})

describe('a fault names the key, its line and the correction, and shows no secret', () => {
  const short = `whsec_${Buffer.alloc(16, 7).toString('base64')}`
  const cases: readonly (readonly [Record<string, string | undefined>, string, string])[] = [
    [{ url: undefined }, 'url', 'url is missing; write url = "https://example.com/turnpike"'],
    [{ url: '"hooks.s3cret"' }, 'url', 'url must be an absolute URL'],
    [{ url: '"ftp://hooks.s3cret"' }, 'url', 'url must be an absolute URL'],
    [{ url: '"https://s3cret@hooks.test"' }, 'url', 'url must not contain a user or password'],
    [{ url: '"https://hooks.test/#s3cret"' }, 'url', 'url must not have a fragment'],
    [{ url: '"http://hooks.test/s3cret"' }, 'url', 'url must be https; or set allow_private'],
    [{ url: '"https://10.0.0.1/s3cret"' }, 'url', 'url is a private address; or set allow_private'],
    [{ url: '"https://localhost"' }, 'url', 'url is a private address; or set allow_private'],
    [{ events: undefined }, 'events', 'events is missing; write events = ["payment.confirmed"]'],
    [{ events: '[]' }, 'events', 'events is missing; write events = ["payment.confirmed"]'],
    [{ events: '"*"' }, 'events', 'events must be an array'],
    [{ events: '["payment.confirmd"]' }, 'events', 'did you mean payment.confirmed?'],
    [{ events: '["payment.*"]' }, 'events', 'events[0] must be one of payment.confirmed, '],
    [
      { secret: undefined },
      'secret',
      `secret is missing; write secret = "${named('WEBHOOK_SECRET')}"`,
    ],
    [{ secret: '"s3cret"' }, 'secret', 'secret must be whsec_ and the base64 of 24 to 64 bytes'],
    [{ secret: `"${short}"` }, 'secret', 'echo "whsec_$(openssl rand -base64 32)"'],
    [{ secret: '[]' }, 'secret', 'secret must be one secret or an array of 1 to 4'],
    [{ secret: '["s3cret"]' }, 'secret', 'secret[0] must be whsec_'],
    [{ secret: `"${named('NOT_SET')}"` }, 'secret', 'the environment has no NOT_SET'],
    [{ secret: `["${named('NOT_SET')}"]` }, 'secret', 'the environment has no NOT_SET'],
    [{ event: '["*"]' }, 'event', 'unknown key event; did you mean events?'],
  ]
  for (const [changes, key, message] of cases)
    test(`error: ${JSON.stringify(changes).replaceAll(short, 'short')}`, () => {
      const { text, faults } = faultsOf(entry(changes))
      expect(faults).toHaveLength(1)
      expect(faults[0]?.message).toContain(message)
      expect(faults[0]?.message).not.toMatch(/s3cret|BwcH/)
      const lines = text.split('\n')
      const written = lines.findLastIndex((line) => line.startsWith(`${key} =`))
      const header = lines.indexOf('[[webhooks]]')
      expect(faults[0]?.line).toBe(1 + Math.max(written, header))
    })

  test('error: two entries with one URL, and too many entries', () => {
    expect(faultsOf(entry(), entry({ events: '["*"]' })).faults[0]?.message).toMatch(
      /^url is already that of the endpoint on line \d+: write one entry for both$/,
    )
    const nine = Array.from({ length: 9 }, (_, i) => entry({ url: `"https://h${i}.test"` }))
    expect(faultsOf(...nine).faults.map(({ message }) => message)).toEqual([
      'there are 9 endpoints; at most 8 are allowed',
    ])
  })
})
