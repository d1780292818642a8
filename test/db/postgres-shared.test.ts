import { describe, expect, test } from 'bun:test'
import { assertSameKeys, type Fingerprints, fingerprintsOf } from '../../db/postgres/admit'
import { watchServer } from '../../db/postgres/open'
import { createPauses } from '../../src/app/pauses'
import { startGateway } from '../harness/gateway-pair'
import { outcomeOf } from '../harness/outcome'
import { gatewayDatabase, hasPostgres, use } from '../harness/postgres'
import { until } from '../harness/settlement'

/** What gateways over one database know of each other, beside payments. */

const firstOf = <T>([first]: readonly T[]): T => {
  if (first === undefined) throw new Error('none')
  return first
}
const key = (byte: number) => new Uint8Array(32).fill(byte)
const secrets = { receiptKey: key(1), relayerKeys: [key(2)], challengeSecrets: [key(3)] }

/** A gateway that lives has written these. */
const serve = (url: string, fingerprints: Fingerprints) =>
  use(url, (client) =>
    client.query(
      `INSERT INTO gateways (id, host, fingerprints)
       VALUES ('00000000-0000-0000-0000-000000000001', 'one', $1)
       ON CONFLICT (id) DO UPDATE SET fingerprints = excluded.fingerprints, seen_at = clock_timestamp()`,
      [JSON.stringify(fingerprints)],
    ),
  )

const startBeside = (url: string, own: Fingerprints) =>
  use(url, (client) =>
    assertSameKeys(async <Row>(text: string) => (await client.query(text)).rows as Row[], own),
  )

describe.skipIf(!hasPostgres)('gateways over one database', () => {
  test('error: a start with another key of desk, refunds or channels is refused, also beside a version that wrote none', async () => {
    const url = await gatewayDatabase()
    const own = fingerprintsOf({ ...secrets, deskKey: key(4), isDeskNamed: true })
    const other = fingerprintsOf({ ...secrets, deskKey: key(5), isDeskNamed: true })
    await serve(url, own)
    await startBeside(url, own)
    expect(await outcomeOf(startBeside(url, other))).toThrow(
      `the gateway on one has another DESK_KEY (${own.desk}, here ${other.desk})`,
    )
    const { desk: _, ...before } = own
    await serve(url, before)
    await startBeside(url, other)
    const from = (byte: number) =>
      fingerprintsOf({ ...secrets, deskKey: key(4), isDeskNamed: true, refundKey: key(byte) })
    await serve(url, from(6))
    await startBeside(url, own)
    await startBeside(url, from(6))
    expect(await outcomeOf(startBeside(url, from(7)))).toThrow('has another REFUND_KEY (')
    const claimedBy = (byte: number) => {
      const keys = { deskKey: key(4), isDeskNamed: true, receiverAuthorizerKey: key(byte) }
      return fingerprintsOf({ ...secrets, ...keys })
    }
    await serve(url, claimedBy(8))
    await startBeside(url, claimedBy(8))
    expect(await outcomeOf(startBeside(url, claimedBy(9)))).toThrow(
      'has another RECEIVER_AUTHORIZER_KEY (',
    )
  })

  test('without DESK_KEY the order of RELAYER_KEYS does not matter, and another key is named', async () => {
    const url = await gatewayDatabase()
    const of = (relayerKeys: Uint8Array[], desk?: Uint8Array) => {
      const deskKey = desk ?? firstOf(relayerKeys)
      return fingerprintsOf({ ...secrets, relayerKeys, deskKey, isDeskNamed: desk !== undefined })
    }
    const own = of([key(2), key(4)])
    await serve(url, own)
    await startBeside(url, of([key(4), key(2)]))
    // A gateway whose file has [stock] may come to those whose file does not have it yet.
    await startBeside(url, of([key(4), key(2)], key(5)))
    const other = of([key(2), key(6)])
    expect(await outcomeOf(startBeside(url, other))).toThrow(
      `has another RELAYER_KEYS (${own.relayers.join(', ')}, here ${other.relayers.join(', ')}): all`,
    )
    await serve(url, of([key(2), key(4)], key(2)))
    expect(await outcomeOf(startBeside(url, of([key(4), key(2)], key(4))))).toThrow(
      'another DESK_KEY (',
    )
  })

  test('error: a gateway whose clock is off for too long is not ready, and names the difference', async () => {
    const url = await gatewayDatabase()
    let aheadMs = 0
    const clock = () => Date.now() + aheadMs
    const gateway = await startGateway(url, { now: Date.now, clock })
    const server = watchServer({ run: () => Promise.reject(new Error('none')) }, gateway.gateways)
    try {
      for (const [ms, word] of [
        [60_000, 'behind'],
        [-60_000, 'ahead of'],
      ] as const) {
        aheadMs = ms
        await until(() => server.reason() !== undefined)
        expect(server.reason()).toContain(word)
        expect(Math.sign(server.aheadMs())).toBe(-Math.sign(ms))
        aheadMs = 0
        await until(() => server.reason() === undefined)
      }
      expect(gateway.fenced).toEqual([])
    } finally {
      server.close()
      await gateway.leave()
    }
  })

  test('an empty notification lets every wait look again', async () => {
    const url = await gatewayDatabase()
    const gateway = await startGateway(url, { now: Date.now })
    try {
      const told = Promise.withResolvers<void>()
      const listener = { payment: () => undefined, job: () => undefined, anything: told.resolve }
      gateway.ledger.onChange(listener)
      const by = '00000000-0000-0000-0000-000000000001'
      await gateway.sql(`SELECT pg_notify('turnpike', $1)`, [JSON.stringify({ by })])
      await told.promise
    } finally {
      await gateway.leave()
    }
  })

  test('one gateway sends the webhooks, whatever the order of the networks in its file', async () => {
    const url = await gatewayDatabase()
    const gateway = await startGateway(url, { now: Date.now })
    try {
      const [one, two] = ['eip155:1', 'eip155:2'] as const
      const other = '00000000-0000-0000-0000-000000000001'
      await gateway.sql(
        `INSERT INTO gateways (id, seen_at) VALUES ($1, clock_timestamp() + interval '1 hour')`,
        [other],
      )
      await gateway.sql(`INSERT INTO lanes (network, relayer, holder) VALUES ($1, 'keeper', $2)`, [
        one,
        other,
      ])
      const lanes = [two, one].map((network) => ({ network, relayer: undefined }))
      const listener = { taken: async () => undefined, release: () => true, keep: () => undefined }
      await gateway.ledger.lanes.start(lanes, listener)
      expect(lanes.map(gateway.ledger.lanes.has)).toEqual([true, false])
      expect(gateway.gateways.isFirst()).toBe(false)
      await gateway.sql('DELETE FROM gateways WHERE id = $1', [other])
      await until(() => gateway.gateways.isFirst())
    } finally {
      await gateway.leave()
    }
  })

  test('error: a pause that cannot be read when it is notified is read again', async () => {
    const pause = { kind: 'merchant' as const, name: 'weather', at: 1 }
    let reads = 0
    let tell: (() => void) | undefined
    const pauses = await createPauses({
      ledger: {
        async pauses() {
          reads++
          if (reads === 2) throw new Error('there is no connection to the database')
          return reads === 1 ? [] : [pause]
        },
        setPause: async () => [],
      },
      onChange: (listener) => {
        tell = listener.anything
      },
      now: Date.now,
    })
    tell?.()
    await until(() => pauses.has('merchant', 'weather'))
    expect(reads).toBe(3)
  })

  test('pauses that two operators set at two gateways at once all count at both', async () => {
    const url = await gatewayDatabase()
    const gateways = [
      await startGateway(url, { now: Date.now }),
      await startGateway(url, { now: Date.now }),
    ]
    try {
      const [one, other] = await Promise.all(
        gateways.map(({ ledger }) =>
          createPauses({ ledger: ledger.admin, onChange: ledger.onChange, now: () => 7 }),
        ),
      )
      if (!one || !other) throw new Error('no pauses')
      const names = ['a', 'b', 'c', 'd']
      const all = names.map((name, index) =>
        (index % 2 === 0 ? one : other).set({ kind: 'merchant', name }, true),
      )
      expect(await Promise.all(all)).toEqual([true, true, true, true])
      const isEach = () =>
        [one, other].every((each) => names.every((name) => each.has('merchant', name)))
      await until(isEach)
      expect(await one.set({ kind: 'merchant', name: 'b' }, false)).toBe(true)
      await until(() => !other.has('merchant', 'b') && other.has('merchant', 'a'))
      const stored = await createPauses({ ledger: firstOf(gateways).ledger.admin, now: Date.now })
      expect(
        stored
          .all()
          .map(({ name }) => name)
          .toSorted(),
      ).toEqual(['a', 'c', 'd'])
    } finally {
      for (const each of gateways) await each.leave()
    }
  })
})
