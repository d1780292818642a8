import { afterEach, describe, expect, test } from 'bun:test'
import {
  acceptLoss,
  assertNoLoss,
  type Gateways,
  joinGateways,
  type Times,
} from '../../db/postgres/gateways'
import { type Lines, openLines, sessionOf } from '../../db/postgres/line-pool'
import { outcomeOf } from '../harness/outcome'
import { gatewayDatabase, hasPostgres } from '../harness/postgres'
import { relayer } from '../harness/scripted'
import { until } from '../harness/settlement'

/** What a gateway concludes from its looks at the lanes, while writes for them are on their way. */

const lane = { network: 'eip155:8453', relayer } as const
const opened: (() => unknown)[] = []
const quick = { beatMs: 5, deadMs: 60_000, steadyMs: 60_000, gapMs: 30_000, freshMs: 45_000 }
afterEach(async () => {
  for (const close of opened.splice(0).toReversed()) await close()
})

/** A gateway with one lane. `afterLook` runs between a look's answer and the gateway's own reading of it. */
async function join(
  afterLook: (gateways: Gateways, lines: Lines) => Promise<void>,
  options: { times?: Times; monotonic?: () => number } = {},
) {
  const { times = quick, monotonic = () => performance.now() } = options
  const real = await openLines({
    servers: [{ connectionString: await gatewayDatabase() }],
    name: 'test',
    session: sessionOf,
    monotonic: () => performance.now(),
  })
  opened.push(real.close)
  const told: string[] = []
  let looks = 0
  const lines: Lines = {
    ...real,
    async run(kind, work) {
      const answer = await real.run(kind, work)
      const isLook = typeof answer === 'object' && answer !== null && 'lanes' in answer
      if (isLook && gateways.lanes.has(lane)) {
        looks++
        await afterLook(gateways, real)
      }
      return answer
    },
  }
  const gateways = await joinGateways({
    lines,
    gateway: {
      id: crypto.randomUUID(),
      host: '',
      version: '',
      configHash: () => '',
      fingerprints: {},
    },
    now: Date.now,
    monotonic,
    on: {
      fenced: () => void told.push('fenced'),
      reaped: () => void told.push('reaped'),
      wentBack: () => void told.push('went back'),
      fault: (error) => void told.push(String(error)),
    },
    times,
  })
  opened.push(gateways.close)
  await gateways.lanes.start([lane], {
    taken: async () => undefined,
    release: () => false,
    keep: () => undefined,
  })
  return { gateways, lines: real, told, looks: () => looks }
}

const setNonce = (lines: Lines, nonce: number) =>
  lines.run('commit', (query) => query('UPDATE lanes SET next_nonce = $1', [nonce]))

describe.skipIf(!hasPostgres)('the lanes of a gateway', () => {
  test('a write that is acknowledged during a look is not taken for lost', async () => {
    let nonce = 0
    const { told, looks, gateways, lines } = await join(async (gateways, lines) => {
      await setNonce(lines, ++nonce)
      gateways.stored(lane, nonce - 1)
    })
    await until(() => looks() > 3)
    expect(told).toEqual([])
    expect(gateways.lanes.has(lane)).toBe(true)
    const rows = await lines.run('read', (query) => query('SELECT epoch FROM lanes'))
    expect(rows).toEqual([{ epoch: 1 }])
  })

  test('error: a database that lacks an acknowledged write ends the process, and says so to the next start', async () => {
    const { told, lines, gateways } = await join(async () => undefined).then(async (joined) => {
      await setNonce(joined.lines, 7)
      joined.gateways.stored(lane, 6)
      await setNonce(joined.lines, 3)
      return joined
    })
    await until(() => told.length > 0)
    expect([told, gateways.lanes.has(lane)]).toEqual([['went back'], false])
    const rows = await lines.run('read', (query) => query('SELECT epoch, next_nonce FROM lanes'))
    expect(rows).toEqual([{ epoch: 1, next_nonce: 3 }])
    const start = () => lines.run('read', (query) => assertNoLoss(query, 'shop'))
    expect(await outcomeOf(start())).toThrow('the database shop lacks commits')
    await lines.run('commit', acceptLoss)
    await start()
  })

  test('error: a refusal of the present epoch ends the process when another one has the lane', async () => {
    const { told, gateways, lines } = await join(async () => undefined)
    await gateways.lost(lane, 1)
    expect([told, gateways.lanes.has(lane)]).toEqual([[], true])
    await lines.run('commit', (query) => query('UPDATE lanes SET holder = NULL, epoch = 2'))
    await gateways.lost(lane, 1)
    expect([told, gateways.lanes.has(lane)]).toEqual([['fenced'], false])
  })

  test('attack: a gateway that wakes from a pause removes no other before its own sign of life', async () => {
    let pausedMs = 0
    const { told, looks, gateways, lines } = await join(async () => undefined, {
      // One sign, at the start.
      times: { beatMs: 600_000, deadMs: 10_000, steadyMs: 10_000, gapMs: 4_000, freshMs: 6_000 },
      monotonic: () => performance.now() + pausedMs,
    })
    await lines.run('commit', (query) =>
      query(`INSERT INTO gateways (id, host, version, config_hash, fingerprints, seen_at)
        VALUES (gen_random_uuid(), '', '', '', '{}', clock_timestamp() - interval '20 s')`),
    )
    pausedMs = 20_000
    const before = looks()
    gateways.wake()
    await until(() => looks() > before)
    expect(told).toEqual([])
    const rows = await lines.run('read', (query) => query('SELECT 1 FROM gateways'))
    expect(rows).toHaveLength(2)
  })
})
