import { describe, expect, test } from 'bun:test'
import type { Query } from '../../db/postgres/Line'
import type { Lines } from '../../db/postgres/line-pool'
import { createFailures, type Payer } from '../../src/settlement/state/payers'
import { startGateway } from '../harness/gateway-pair'
import { gatewayDatabase, hasPostgres } from '../harness/postgres'
import { until } from '../harness/settlement'

/** Failures of payers that the gateways of one database count together. */

const windowMs = 600_000
const most = 5
const each = windowMs / most
const start = 1_800_000_000_000
const payer: Payer = { address: '0xPayer', code: 'eoa', isNew: false }

/** A gateway with a clock of its own. */
async function gatewayAt(url: string, at = start, lines?: (lines: Lines) => Lines) {
  const clock = { ms: at }
  const now = () => clock.ms
  const gateway = await startGateway(url, { now, ...(lines && { lines }) })
  const ledger = gateway.ledger.failures
  return {
    clock,
    sql: gateway.sql,
    fullAt: (key = payer.address) => ledger.fullAt(key),
    fail: (key = payer.address) => ledger.add([{ key, ms: each }], windowMs),
    /** As a process that has recorded none itself. */
    waitSeconds: () => createFailures(now, most, ledger).waitSeconds(payer),
    [Symbol.asyncDispose]: gateway.leave,
  }
}

describe.skipIf(!hasPostgres)('failures that gateways count together', () => {
  test('those of all gateways add up, and expire one after the other', async () => {
    const url = await gatewayDatabase()
    await using one = await gatewayAt(url)
    await using other = await gatewayAt(url)
    for (let count = 1; count <= most; count++) {
      expect(one.waitSeconds()).toBe(0)
      await (count % 2 ? one : other).fail()
      for (const gateway of [one, other])
        await until(() => gateway.fullAt() === start + count * each)
    }
    expect([one, other].map((gateway) => gateway.waitSeconds())).toEqual([120, 120])
    expect(one.fullAt('0xOther')).toBe(0)
    for (const gateway of [one, other]) gateway.clock.ms += each
    expect([one, other].map((gateway) => gateway.waitSeconds())).toEqual([0, 0])
  })

  test('attack: one failure more than are allowed does not forget them all', async () => {
    const url = await gatewayDatabase()
    await using one = await gatewayAt(url)
    for (let count = 0; count <= most; count++) await one.fail()
    expect(one.fullAt()).toBe(start + windowMs)
    expect(one.waitSeconds()).toBe(120)
    await using third = await gatewayAt(url)
    expect(third.waitSeconds()).toBe(120)
  })

  test('attack: failures count at a gateway whose clock is behind by seconds', async () => {
    const url = await gatewayDatabase()
    await using one = await gatewayAt(url)
    for (let count = 0; count < most; count++) await one.fail()
    await using behind = await gatewayAt(url, start - 9_000)
    expect(behind.fullAt()).toBe(start + windowMs)
    expect(behind.waitSeconds()).toBe(120)
    await behind.fail()
    await using third = await gatewayAt(url)
    expect(third.fullAt()).toBe(start + windowMs - 9_000)
    expect(third.waitSeconds()).toBe(111)
  })

  test('error: a time that a clock wrote which was set back by more does not count', async () => {
    const url = await gatewayDatabase()
    await using ahead = await gatewayAt(url, start + 3_600_000)
    await ahead.fail()
    await using one = await gatewayAt(url)
    expect(one.fullAt()).toBe(start + 3_600_000 + each)
    expect(one.waitSeconds()).toBe(0)
    await one.fail()
    const rows = await one.sql<{ at: number }>('SELECT full_at AS at FROM payer_failures')
    expect(rows).toEqual([{ at: start + each }])
  })

  test('what has expired neither adds to a new failure nor stays', async () => {
    const url = await gatewayDatabase()
    await using one = await gatewayAt(url)
    await one.fail()
    await one.fail('0xGone')
    one.clock.ms += each + 1
    await until(() => one.fullAt('0xGone') === 0)
    await one.fail()
    expect(one.fullAt()).toBe(one.clock.ms + each)
    const rows = await one.sql<{ key: string }>('SELECT key FROM payer_failures')
    expect(rows).toEqual([{ key: '0xpayer' }])
  })

  test('error: a read that began before a failure was written does not undo it', async () => {
    const url = await gatewayDatabase()
    const held: (() => void)[] = []
    let isHolding = false
    const holding = (lines: Lines): Lines => ({
      ...lines,
      run: (kind, work) =>
        lines.run(kind, (query) =>
          work(async <Row>(...asked: Parameters<Query>) => {
            const [text] = asked
            const rows = await query<Row>(...asked)
            const isRead = text.startsWith('SELECT') && text.includes('payer_failures')
            if (isRead && isHolding) await new Promise<void>((resolve) => void held.push(resolve))
            return rows
          }),
        ),
    })
    await using one = await gatewayAt(url, start, holding)
    await one.fail()
    isHolding = true
    try {
      await until(() => held.length === 1)
      await one.fail()
      expect(one.fullAt()).toBe(start + 2 * each)
      held[0]?.()
      // One read at a time: the next one says that what this one found was noted.
      await until(() => held.length === 2)
      expect(one.fullAt()).toBe(start + 2 * each)
    } finally {
      isHolding = false
      for (const go of held) go()
    }
  })
})
