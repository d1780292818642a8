import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { Client } from 'pg'
import {
  channelOf,
  chargeRow,
  onChain,
  pay,
  reservedOf,
  type TestChannel,
} from '../harness/channel-rows'
import { startFailover } from '../harness/failover'
import { startGateway, type TestGateway } from '../harness/gateway-pair'
import { gatewayDatabase, hasPostgres } from '../harness/postgres'
import { at, freshNetwork } from '../harness/settling-rows'
import { until } from '../harness/world'

/** Channels of several gateways: a voucher is charged once, whichever of them has it. */

const now = () => at
const times = { beatMs: 50, deadMs: 500, steadyMs: 200, gapMs: 400, freshMs: 450 }

describe.skipIf(!hasPostgres)('gateways of one database', () => {
  let url: string
  let one: TestGateway
  let other: TestGateway
  beforeAll(async () => {
    url = await gatewayDatabase()
    one = await startGateway(url, { now })
    other = await startGateway(url, { now })
  })
  afterAll(() => Promise.all([one.leave(), other.leave()]))

  const fresh = async () => {
    const channel = channelOf(freshNetwork())
    const inserted = await Promise.all(
      [one, other].map(({ ledger }) => ledger.channels.insert(channel, onChain(), at)),
    )
    expect(inserted.filter(Boolean)).toHaveLength(1)
    return channel
  }
  const reserve = (
    { ledger }: TestGateway,
    { id }: TestChannel,
    maxAtomic: bigint,
    changes: Parameters<typeof reservedOf>[1] = {},
  ) =>
    ledger.channels.reserve({
      channelId: id,
      ...{ baseAtomic: 0n, reserved: reservedOf(maxAtomic, changes) },
    })

  test('attack: of vouchers that come to both at once one is charged at each base', async () => {
    const channel = await fresh()
    let base = 0n
    for (let round = 0; round < 8; round++) {
      const amounts = { baseAtomic: base, amountAtomic: 7n }
      const all = await Promise.all(
        [one, other, one, other].map(({ ledger }) => pay(ledger.channels, channel, amounts)),
      )
      expect(all.filter((each) => each !== undefined)).toHaveLength(1)
      base += 7n
      for (const { ledger } of [one, other])
        expect(await ledger.channels.find(channel.id)).toMatchObject({
          ...{ chargedAtomic: base, signed: { maxAtomic: base }, reserved: undefined },
        })
    }
    const [row] = await one.sql<{ sum: string; n: string }>(
      `SELECT sum(amount_atomic::numeric)::text AS sum, count(*)::text AS n FROM payments
       WHERE transaction_hash = $1`,
      [channel.id],
    )
    expect(row).toEqual({ sum: '56', n: '8' })
  })

  test('a living gateway keeps its reservation, and its charge is delivered by it', async () => {
    const channel = await fresh()
    const reserved = reservedOf(100n)
    const { id } = reserved
    const voucher = { channelId: channel.id, baseAtomic: 0n, reserved }
    expect(await one.ledger.channels.reserve(voucher)).toBe('reserved')
    expect(await reserve(other, channel, 100n)).toMatchObject({ reserved })
    const later = await startGateway(url, { now })
    expect((await later.ledger.channels.find(channel.id))?.reserved).toEqual(reserved)
    await later.leave()
    const charge = { row: chargeRow(channel, id, { baseAtomic: 0n, amountAtomic: 40n }) }
    expect(await one.ledger.channels.charge(charge)).toMatchObject({ delivery: 'delivering' })
    expect(await other.ledger.deliveries.begin(id)).toBeUndefined()
    const done = { upstreamStatus: 200, truncated: false }
    expect(await other.ledger.deliveries.deliver(id, done, at)).toBe(false)
    expect(await one.ledger.deliveries.deliver(id, done, at)).toBe(true)
  })

  test('a charge with the own key of a payment of another gateway loses the key, not the money', async () => {
    const [first, second] = [await fresh(), await fresh()]
    const amounts = { baseAtomic: 0n, amountAtomic: 5n }
    const key = { idempotencyKey: 'mine' }
    const paid = await pay(one.ledger.channels, first, amounts, key)
    expect(paid?.purpose.idempotencyKey).toBe('mine')
    const again = await pay(other.ledger.channels, second, amounts, key)
    expect(again?.purpose.idempotencyKey).toBeUndefined()
    expect(again?.transfer.amountAtomic).toBe(5n)
  })

  test('what a gateway that dies has reserved is released, and no refund', async () => {
    const shared = await gatewayDatabase()
    const [dying, heir] = [
      await startGateway(shared, { now }),
      await startGateway(shared, { now, times }),
    ]
    const lanes = [{ network: 'eip155:1', relayer: undefined }] as const
    const listener = { taken: async () => undefined, release: () => true, keep: () => undefined }
    await heir.ledger.lanes.start(lanes, listener)
    const channels = [channelOf(freshNetwork()), channelOf(freshNetwork())] as const
    for (const each of channels) await heir.ledger.channels.insert(each, onChain(), at)
    const [request, refund] = channels
    expect(await reserve(dying, request, 100n)).toBe('reserved')
    expect(await reserve(dying, refund, 0n, { id: 'refund:0' })).toBe('reserved')
    await dying.die()
    const reservedBy = async ({ id }: TestChannel) =>
      (await heir.ledger.channels.find(id))?.reserved?.id
    await until('it is released', async () => (await reservedBy(request)) === undefined)
    expect(heir.reaped).toEqual([dying.id])
    expect(await reservedBy(refund)).toBe('refund:0')
    const amounts = { baseAtomic: 0n, amountAtomic: 100n }
    expect(await pay(heir.ledger.channels, request, amounts)).toBeDefined()
    await heir.leave()
  })

  test('what a living gateway reserves while that of a dead one is released stays reserved', async () => {
    const channel = await fresh()
    const gone = await startGateway(url, { now })
    expect(await reserve(gone, channel, 9n)).toBe('reserved')
    await gone.die()
    await one.sql('DELETE FROM gateways WHERE id = $1', [gone.id])
    const client = new Client({ connectionString: url })
    await client.connect()
    await client.query('BEGIN')
    const taken = reservedOf(9n)
    await client.query('UPDATE channels SET reserved_id = $2, reserved_by = $3 WHERE id = $1', [
      ...[channel.id, taken.id, one.id],
    ])
    // Its start releases what gateways that are gone had reserved.
    const starting = startGateway(url, { now })
    const waiting = `SELECT 1 FROM pg_stat_activity
      WHERE datname = current_database() AND wait_event_type = 'Lock'`
    await until('the release waits', async () => (await other.sql(waiting)).length > 0)
    await client.query('COMMIT')
    await client.end()
    const later = await starting
    expect((await later.ledger.channels.find(channel.id))?.reserved?.id).toBe(taken.id)
    await later.leave()
  })

  test('a voucher that a living gateway has released stays released after a crash of the server', async () => {
    // What need not be on the disk gets there late.
    await using server = await startFailover({ wal_writer_delay: '10s' })
    const gateway = await startGateway(server.url, { now })
    const { channels } = gateway.ledger
    const channel = channelOf(freshNetwork())
    await channels.insert(channel, onChain(), at)
    const reserved = reservedOf(9n)
    const voucher = { channelId: channel.id, baseAtomic: 0n, reserved }
    expect(await channels.reserve(voucher)).toBe('reserved')
    expect(await channels.release(channel.id, reserved.id)).toBe(true)
    await server.crash()
    await gateway.ledger.writable(new AbortController().signal)
    expect(await reserve(gateway, channel, 10n)).toBe('reserved')
    await gateway.leave()
  })

  test('a voucher of a gateway that has left is reserved again before it is released', async () => {
    const channel = await fresh()
    await one.ledger.channels.reserve({
      channelId: channel.id,
      ...{ baseAtomic: 0n, reserved: reservedOf(9n) },
    })
    await one.sql('UPDATE channels SET reserved_by = NULL WHERE id = $1', [channel.id])
    expect(await reserve(other, channel, 10n)).toBe('reserved')
  })
})
