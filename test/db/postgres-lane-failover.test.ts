import { afterEach, describe, expect, test } from 'bun:test'
import type { Lane, LaneListener } from '../../db/LaneLedger'
import type { Lines } from '../../db/postgres/line-pool'
import { account } from '../../src/demo/accounts'
import { startGateway, type TestGateway } from '../harness/gateway-pair'
import { gatewayDatabase, hasPostgres } from '../harness/postgres'
import { until } from '../harness/settlement'

/** A failover that loses the holders of accounts. The test sets the tables back. */

const network = 'eip155:8453'
const lane: Lane = { network, relayer: account(5).address }
const calm = { beatMs: 20, deadMs: 60_000, steadyMs: 60_000, freshMs: 45_000 }
const listener: LaneListener = {
  taken: async () => undefined,
  release: () => true,
  keep: () => undefined,
}

const opened: TestGateway[] = []
const holds: (() => void)[] = []
afterEach(async () => {
  for (const release of holds.splice(0)) release()
  for (const each of opened.splice(0)) await each.leave()
})

/** A gateway whose looks can be held back, and are counted. */
async function start(url: string, gapMs = 30_000) {
  let held: Promise<void> | undefined
  let looks = 0
  const lines = (real: Lines): Lines => ({
    ...real,
    async run(kind, work) {
      const answer = await real.run(kind, work)
      const isLook = typeof answer === 'object' && answer !== null && 'lanes' in answer
      if (isLook) looks++
      if (isLook) await held
      return answer
    },
  })
  const gateway = await startGateway(url, { now: Date.now, lines, times: { ...calm, gapMs } })
  opened.push(gateway)
  return {
    ...gateway,
    looks: () => looks,
    /** Its looks wait until the returned function is called. */
    hold() {
      const { promise, resolve } = Promise.withResolvers<void>()
      held = promise
      holds.push(resolve)
      return resolve
    },
  }
}

/** New connections of all gateways, then the rows before a change of the holder. */
async function goBack({ sql }: TestGateway, rows: string) {
  await sql(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()`)
  await sql(rows)
}

/** Resolves when a gateway has looked this often. */
async function looked({ looks }: Awaited<ReturnType<typeof start>>, times: number) {
  const before = looks()
  await until(() => looks() >= before + times)
}

describe.skipIf(!hasPostgres)('a failover that lost the change of a holder', () => {
  test('attack: a former holder does not take the account before its holder has found the loss, which ends both', async () => {
    const url = await gatewayDatabase()
    const holder = await start(url)
    await holder.ledger.lanes.start([lane], listener)
    const former = await start(url)
    await former.ledger.lanes.start([lane], listener)
    // It has sent at this account nonce.
    holder.gateways.stored(lane, 6)
    const release = holder.hold()
    await goBack(former, `UPDATE lanes SET holder = '${former.id}', epoch = 0, next_nonce = 5`)
    await looked(former, 5)
    expect(former.ledger.lanes.has(lane)).toBe(false)
    release()
    await until(() => holder.wentBack.length > 0 && former.wentBack.length > 0)
    expect([holder.wentBack, former.wentBack]).toEqual([[lane], [undefined]])
    expect([holder.fenced, former.fenced]).toEqual([[], []])
    expect([holder, former].some(({ ledger }) => ledger.lanes.has(lane))).toBe(false)
  })

  test('attack: an account whose take is lost is not taken by another gateway, which ends with its holder', async () => {
    const url = await gatewayDatabase()
    const holder = await start(url)
    await holder.ledger.lanes.start([lane], listener)
    const other = await start(url)
    await other.ledger.lanes.start([lane], listener)
    const release = holder.hold()
    await goBack(other, 'UPDATE lanes SET holder = NULL, epoch = 0, next_nonce = 0')
    await looked(other, 5)
    expect(other.ledger.lanes.has(lane)).toBe(false)
    release()
    await until(() => holder.wentBack.length > 0 && other.wentBack.length > 0)
    expect([holder.fenced, other.fenced]).toEqual([[], []])
    expect([holder, other].some(({ ledger }) => ledger.lanes.has(lane))).toBe(false)
  })

  test('an account without a holder is taken after a failover', async () => {
    const url = await gatewayDatabase()
    const holder = await start(url)
    await holder.ledger.lanes.start([lane], listener)
    const other = await start(url, 100)
    await other.ledger.lanes.start([lane], listener)
    await holder.leave()
    await goBack(other, `UPDATE lanes SET holder = NULL`)
    await until(() => other.ledger.lanes.has(lane))
  })
})
