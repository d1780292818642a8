import { describe, expect, test } from 'bun:test'
import type { Purpose } from '../../db/Payment'
import { createLog, type Fields, scrub } from '../../src/log'
import { saleOf } from '../../src/paywall/answer/delivery'
import type { Transfer } from '../../src/protocol/Transfer'

const signature = `0x${'ab'.repeat(65)}`
const credential = `Payment eyJjaGFsbGVuZ2UiOnsiaWQiOiJ4In0sInBheWxvYWQiOnt9fQ`
const payload = Buffer.from('x'.repeat(300)).toString('base64')
const rpcUrl = 'https://user:pw@rpc.example.com/v2/sEcReTkEy123?apikey=zzz'

function capture(pretty = false) {
  const lines: string[] = []
  const log = createLog({ write: (line) => lines.push(line), pretty, now: () => 1_700_000_000_000 })
  return { log, lines }
}

function record(fields: Fields): Record<string, unknown> {
  const { log, lines } = capture()
  log('stopping', fields)
  return JSON.parse(lines[0] ?? '')
}

describe('log', () => {
  test('one JSON line per event with time, level, event and the context', () => {
    const { log, lines } = capture()
    log.child({ requestId: 'r1' })('upstream-failed', { amountAtomic: 5000n, a: 'b\nc' })
    expect(lines).toEqual([
      '{"time":"2023-11-14T22:13:20.000Z","level":"warn","event":"upstream-failed","requestId":"r1","amountAtomic":"5000","a":"b\\nc"}',
    ])
  })

  test('fields cannot replace time, level and event', () => {
    expect(record({ level: 'error', event: 'y', time: 0, ['__proto__']: { a: 1 } })).toMatchObject({
      level: 'info',
      event: 'stopping',
      time: '2023-11-14T22:13:20.000Z',
    })
  })

  test('values of fields with a secret name never appear, at any depth', () => {
    const names = 'authorization paymentSignature raw rawTransaction secret CHALLENGE_SECRETS key'
    const more = 'relayerKeys adminToken credential cookie set-cookie x-api-key Payment-Redeem seed'
    for (const name of `${names} ${more}`.split(' ')) {
      expect(JSON.stringify(record({ a: [{ [name]: 'hunter2' }] }))).not.toContain('hunter2')
    }
    for (const name of ['Authorization', 'payment-signature', 'X-PAYMENT', 'Cookie', 'x-api-key']) {
      const headers = new Headers({ [name]: 'hunter2' })
      expect(JSON.stringify(record({ headers }))).not.toContain('hunter2')
    }
    expect(record({ monkey: 'm', keyboard: 'k', tokens: 14 })).toMatchObject({
      monkey: 'm',
      keyboard: 'k',
      tokens: 14,
    })
  })

  test('text that looks like a credential is redacted from any text', () => {
    const cause = new Error(`body: {"raw":"${signature}"}`)
    const error = new Error(`POST ${rpcUrl} failed: ${credential}`, { cause })
    const text = JSON.stringify(record({ note: `${credential} ${signature} ${payload}`, error }))
    for (const secret of ['eyJ', 'abab', 'eHh4', 'sEcReT', 'zzz', 'pw@']) {
      expect(text).not.toContain(secret)
    }
    expect(text).toContain('https://rpc.example.com/...')
    expect(scrub('Bearer sk-or-v1-0123456789 x')).toBe('Bearer [redacted] x')
  })

  test('secrets of places of alerts are redacted, alone and in a sentence', () => {
    const bot = `123456789:${'Ab-'.repeat(11)}Ab`
    const places = [bot, `bot${bot}`, 'services/T0A/B0B/s3cretX', '/api/webhooks/123/s3cret-X_y']
    for (const secret of places) {
      expect(scrub(secret)).toContain('[redacted]')
      expect(scrub(`404 at ${secret} again`)).not.toMatch(/Ab-Ab|s3cret/)
    }
  })

  test('hashes, addresses and plain paths stay readable', () => {
    const plain = `0x${'1f'.repeat(32)} 0x${'2e'.repeat(20)} /m/weather/forecast http://localhost:4020`
    expect(scrub(plain)).toBe(plain)
  })

  test('cycles, bytes and odd values do not throw', () => {
    const cycle: Record<string, unknown> = { bytes: new Uint8Array(32), nan: Number.NaN }
    cycle.self = cycle
    expect(record({ cycle, fn: () => 1, when: new Date(0) })).toMatchObject({
      cycle: { bytes: '[32 bytes]', nan: 'NaN' },
      fn: '[function]',
      when: '1970-01-01T00:00:00.000Z',
    })
  })

  test('a terminal line carries no control characters', () => {
    const { log, lines } = capture(true)
    log.child({ requestId: 'r1' })('stopping', { port: 4020, path: '/a\u001b[2J\u202eb', big: 1n })
    expect(lines).toEqual([
      '22:13:20.000 INFO  stopping r1 port=4020 path=/a\\u{1b}[2J\\u{202e}b big=1',
    ])
  })

  test('a log without a writer is one shared no-op', () => {
    const log = createLog({ write: null })
    expect(log.child({ requestId: 'r1' })).toBe(log)
    log('stopping', { a: 1 })
  })
})

test('a terminal has one line for a sale, and JSON keeps its fields', () => {
  const payer = '0x70997970C51812dc3A010C7d01b50e0d17dc79C8' as const
  const transfer = { amountAtomic: 10_000n, network: 'eip155:8453', payer } as unknown as Transfer
  const saidOf = (route: string) => {
    const purpose = { merchant: 'api', route } as unknown as Purpose
    return saleOf({ transfer, purpose, createdAt: 1_000 }, 'complete', {
      symbolOf: () => 'USDC',
      now: () => 1_200,
    })
  }
  const said = () => saidOf('/hello')
  // The route of a whole API has an empty path.
  expect(saidOf('')).toBe('sold api / 0.01 USDC from 0x7099\u202679C8 in 0.2 s')
  const [terminal, json] = [capture(true), capture()]
  for (const { log } of [terminal, json]) {
    log('payment-delivery', { payment: 'pay_1' }, said)
    log('transaction-included', { paid: 1 }, () => '')
  }
  expect(terminal.lines).toEqual([
    '22:13:20.000 INFO  sold api /hello 0.01 USDC from 0x7099…79C8 in 0.2 s',
  ])
  expect(json.lines.map((line) => JSON.parse(line))).toMatchObject([
    { event: 'payment-delivery', payment: 'pay_1' },
    { event: 'transaction-included', paid: 1 },
  ])
})
