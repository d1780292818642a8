import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { Launched } from '../../db/Ledger'
import { LaneLostError } from '../../db/postgres/errors'
import type { Lane } from '../../db/postgres/fences'
import { paymentOf } from '../../db/rows'
import { account } from '../../src/demo/accounts'
import { failureOf } from '../harness/outcome'
import { hasPostgres } from '../harness/postgres'
import { until } from '../harness/settlement'
import { type Actions, actionsOf, inclusionOf, paidBy } from '../harness/settling-actions'
import { openGateway, openPostgres, type Settling } from '../harness/settling-ledgers'
import {
  asset,
  at,
  freshNetwork,
  hashOf,
  jobRow,
  next,
  paymentRow,
  transactionRow,
} from '../harness/settling-rows'

/** Two gateways over one database write at the same time. */
describe.skipIf(!hasPostgres)('two gateways', () => {
  let own: Awaited<ReturnType<typeof openPostgres>>
  let does: Actions
  let both: readonly [Settling, Settling]
  beforeAll(async () => {
    own = await openPostgres()
    does = actionsOf(own)
    both = [own.ledger, own.other]
  })
  afterAll(() => own.close())

  const kindsOf = (ends: readonly Launched[]) => ends.map(({ kind }) => kind).toSorted()

  test('two launches of the same money write it once, and the other one gets the payment', async () => {
    for (let round = 0; round < 10; round++) {
      const network = freshNetwork()
      const nonce = hashOf(next())
      const ends = await Promise.all(
        both.map((ledger) => {
          const transaction = transactionRow(network)
          const fresh = [{ row: paymentRow(transaction, { nonce }) }]
          return ledger.settling.launch({ transaction, fresh, again: [] })
        }),
      )
      expect(kindsOf(ends)).toEqual(['known', 'stored'])
      const [stored] = ends.flatMap((end) => (end.kind === 'stored' ? end.payments : []))
      const [known] = ends.flatMap((end) =>
        end.kind === 'known' ? [...end.payments.values()] : [],
      )
      expect(known).toEqual(stored)
    }
  })

  test('batches with common money in other orders wait without a deadlock', async () => {
    for (let round = 0; round < 20; round++) {
      const network = freshNetwork()
      const nonces = Array.from({ length: 8 }, () => hashOf(next()))
      const ends = await Promise.all(
        [nonces, nonces.toReversed()].map((ordered, index) => {
          const transaction = transactionRow(network)
          const fresh = ordered.map((nonce) => ({ row: paymentRow(transaction, { nonce }) }))
          return both[index as 0 | 1].settling.launch({ transaction, fresh, again: [] })
        }),
      )
      expect(kindsOf(ends)).toEqual(['known', 'stored'])
      const [known] = ends.flatMap((end) => (end.kind === 'known' ? [end.payments.size] : []))
      expect(known).toBe(8)
    }
    expect(own.deadlocks()).toBe(0)
  })

  test('two launches of one commit wait for those of another gateway without a deadlock', async () => {
    const payers = [account(1).address, account(2).address]
    for (let round = 0; round < 20; round++) {
      const network = freshNetwork()
      const moneys = payers.map((payer) => ({ payer, nonce: hashOf(next()) }))
      // Launches of one turn share a commit. Each gateway has the moneys in another order.
      const ends = await Promise.all(
        both.map((ledger, index) =>
          Promise.all(
            (index === 0 ? moneys : moneys.toReversed()).map((money) => {
              const transaction = transactionRow(network)
              const row = paymentRow(transaction, money)
              const fresh = [{ row, fundsAtomic: 10n ** 12n }]
              return ledger.settling.launch({ transaction, fresh, again: [] })
            }),
          ),
        ),
      )
      expect(kindsOf(ends.flat())).toEqual(['known', 'known', 'stored', 'stored'])
    }
    expect(own.deadlocks()).toBe(0)
  })

  test('members that one gateway records while another gives up are confirmed', async () => {
    for (let round = 0; round < 20; round++) {
      const { transaction, ids } = await does.launch(8)
      const ends = await Promise.all([
        own.ledger.settling.record(inclusionOf({ transaction }), paidBy(ids.toReversed())),
        own.other.settling.giveUp({
          hashes: [transaction.hash],
          payments: ids,
          job: undefined,
          at,
        }),
      ])
      // A reverted payment is still confirmed by its receipt.
      expect(ends[0].map((end) => end?.state)).toEqual(Array(8).fill('confirmed'))
      expect(await does.statesOf(ids)).toEqual(Array(8).fill('confirmed'))
    }
  })

  test('a receipt and a revert at once leave a paid payment confirmed', async () => {
    for (let round = 0; round < 10; round++) {
      const { transaction, ids } = await does.launch()
      const [id = ''] = ids
      await Promise.all([
        own.ledger.settling.record(inclusionOf({ transaction }), paidBy(ids)),
        own.other.settling.revert(id, [transaction.hash]),
        own.other.settling.expire('pay_none', false),
      ])
      expect(await does.statesOf(ids)).toEqual(['confirmed'])
    }
  })

  test('one log pays for one payment when two gateways assign it', async () => {
    for (let round = 0; round < 10; round++) {
      const { transaction, ids } = await does.launch(2)
      const [a = '', b = ''] = ids
      const assignment = { transaction: transaction.hash, logIndex: 0, blockNumber: 200n }
      const members = [{ id: a, logs: [0, 1], startsDelivery: false }]
      const [recorded, confirmed] = await Promise.allSettled([
        own.ledger.settling.record(inclusionOf({ transaction }), members),
        own.other.settling.confirm(b, assignment, at),
      ])
      expect(recorded.status).toBe('fulfilled')
      const isConfirmed = confirmed.status === 'fulfilled'
      expect(await does.payment(a)).toMatchObject({ logIndex: isConfirmed ? 1 : 0 })
      expect(await does.statesOf([b])).toEqual([isConfirmed ? 'confirmed' : 'broadcast'])
    }
  })

  test('one key buys once, and only the second payment of a batch is refused', async () => {
    for (let round = 0; round < 10; round++) {
      const key = `key ${next()}`
      const ends = await Promise.all(
        both.map(async (ledger) => {
          const transaction = transactionRow(freshNetwork())
          const others = [paymentRow(transaction), paymentRow(transaction)]
          const row = paymentRow(transaction, { idempotencyKey: key })
          const [first, last] = others as [typeof row, typeof row]
          const fresh = [first, row, last].map((each) => ({ row: each }))
          return { row, end: await ledger.settling.launch({ transaction, fresh, again: [] }) }
        }),
      )
      expect(kindsOf(ends.map(({ end }) => end))).toEqual(['refused', 'stored'])
      for (const { row, end } of ends)
        if (end.kind === 'refused') expect(end).toMatchObject({ ids: [row.id], reason: 'key-used' })
    }
  })

  test('two payments of one key in one launch are not both written', async () => {
    const transaction = transactionRow(freshNetwork())
    const rows = [1, 2].map(() => paymentRow(transaction, { idempotencyKey: `key ${next()}` }))
    const [one, two] = rows as [(typeof rows)[0], (typeof rows)[0]]
    const fresh = [one, { ...two, idempotencyKey: one.idempotencyKey }].map((row) => ({ row }))
    const { settling } = own.ledger
    expect(await settling.launch({ transaction, fresh, again: [] })).toEqual({
      kind: 'refused',
      ids: [two.id],
      reason: 'key-used',
    })
  })

  test('attack: one refusal names all payments that their payer cannot cover, the newest of them', async () => {
    const transaction = transactionRow(freshNetwork())
    const [payer, other] = [account(3).address, account(4).address]
    const rows = [payer, other, payer, payer, other, payer].map((each) =>
      paymentRow(transaction, { payer: each, amountAtomic: 100n }),
    )
    const launch = (given: typeof rows) =>
      own.ledger.settling.launch({
        transaction,
        fresh: given.map((row) => ({ row, fundsAtomic: row.payer === payer ? 299n : 200n })),
        again: [],
      })
    const refused = await launch(rows)
    if (refused.kind !== 'refused') throw new Error(refused.kind)
    const late = rows.filter((_, index) => index === 3 || index === 5).map(({ id }) => id)
    expect([refused.reason, refused.ids.toSorted()]).toEqual(['payer-under-way', late])
    const left = rows.filter(({ id }) => !refused.ids.includes(id))
    expect(await launch(left)).toMatchObject({ kind: 'stored', payments: [{}, {}, {}, {}] })
  })

  test("attack: one refusal names all payments whose buyer's own key has an open ceiling", async () => {
    const transaction = transactionRow(freshNetwork())
    const keys = [1, 2].map(() => `key ${next()}`)
    for (const idempotencyKey of keys) {
      const ceiling = { method: 'permit2', ceilingAtomic: 9_000n, facilitator: asset } as const
      const row = paymentRow(transaction, ceiling)
      await does.authorize(row)
      await own.run(
        `UPDATE authorizations SET idempotency_key = '${idempotencyKey}' WHERE id = '${row.id}'`,
      )
    }
    const rows = [undefined, ...keys].map((key) =>
      paymentRow(transaction, { idempotencyKey: key ?? null }),
    )
    const fresh = rows.map((row) => ({ row, fundsAtomic: 10n ** 12n }))
    const refused = await own.ledger.settling.launch({ transaction, fresh, again: [] })
    if (refused.kind !== 'refused') throw new Error(refused.kind)
    const twins = rows.slice(1).map(({ id }) => id)
    expect([refused.reason, refused.ids.toSorted()]).toEqual(['key-used', twins])
  })

  test('a charge that was delivered is settled, though its key has bought something', async () => {
    const key = `key ${next()}`
    await does.launch(1, { idempotencyKey: key })
    const transaction = transactionRow(freshNetwork())
    const row = paymentRow(transaction, {
      method: 'permit2',
      ceilingAtomic: 9_000n,
      facilitator: asset,
      idempotencyKey: key,
    })
    await does.authorize(row)
    const rows = { settles: 'authorization' } as const
    const end = await own.ledger.settling.launch({ transaction, fresh: [{ row, rows }], again: [] })
    expect(end).toMatchObject({ kind: 'stored', payments: [{ id: row.id, delivery: 'delivered' }] })
    expect((await does.payment(row.id)).purpose.idempotencyKey).toBeUndefined()
  })

  test('error: a delivery that cannot be written fails alone', async () => {
    const { ids } = await does.confirm(3)
    const { deliveries } = own.ledger
    await Promise.all(ids.map((id) => deliveries.begin(id)))
    const ends = await Promise.allSettled(
      ids.map((id, index) => {
        const upstreamStatus = index === 1 ? 1e20 : 200
        return deliveries.deliver(id, { upstreamStatus, truncated: false }, at)
      }),
    )
    expect(ends.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled'])
    const stored = await Promise.all(ids.map(does.payment))
    expect(stored.map(({ delivery }) => delivery)).toEqual(['delivered', 'delivering', 'delivered'])
  })

  test('a delivery of a live gateway is not taken, that of a dead one is', async () => {
    const url = own.url
    const [one, other] = [await openGateway(url), await openGateway(url)]
    try {
      await own.run(`INSERT INTO gateways (id, host, version, config_hash, fingerprints, seen_at)
        SELECT id, 'h', 'v', 'c', '{}', clock_timestamp()
        FROM unnest('{${one.gateway},${other.gateway}}'::uuid[]) AS each (id)`)
      const { ids } = await does.confirm()
      const [id = ''] = ids
      const started = await Promise.all(
        [one, other].map(({ ledger }) => ledger.deliveries.begin(id)),
      )
      expect(started.filter((each) => each !== undefined)).toHaveLength(1)
      const [first, second] = started[0] ? [one, other] : [other, one]
      // Its own process may begin it again, as with one gateway.
      expect(await first.ledger.deliveries.begin(id)).toMatchObject({ attempts: 2 })
      const result = { upstreamStatus: 200, truncated: false }
      const failure = { upstreamStatus: 500, redeemTokenHash: hashOf(next()), redeemUntil: at }
      expect(await second.ledger.deliveries.begin(id)).toBeUndefined()
      expect(await second.ledger.deliveries.deliver(id, result, at)).toBe(false)
      expect(await second.ledger.deliveries.fail(id, failure, at)).toBe(false)
      await own.run(`DELETE FROM gateways WHERE id = '${first.gateway}'`)
      expect(await second.ledger.deliveries.begin(id)).toMatchObject({ attempts: 3 })
      expect(await first.ledger.deliveries.deliver(id, result, at)).toBe(false)
      expect(await first.ledger.deliveries.fail(id, failure, at)).toBe(false)
      expect(await second.ledger.deliveries.fail(id, failure, at)).toBe(true)
      // Nobody delivers it now.
      expect(await first.ledger.deliveries.begin(id)).toMatchObject({ attempts: 4 })
      expect(await first.ledger.deliveries.deliver(id, result, at)).toBe(true)
    } finally {
      one.close()
      other.close()
    }
  })

  test('a delivery that starts with the receipt belongs to the gateway that recorded it', async () => {
    const { transaction, ids } = await does.launch()
    const one = await openGateway(own.url)
    try {
      await one.ledger.settling.record(inclusionOf({ transaction }), paidBy(ids, true))
      const [row] = await own.run(`SELECT delivering_by FROM payments WHERE id = '${ids[0]}'`)
      expect(row).toEqual({ delivering_by: one.gateway })
    } finally {
      one.close()
    }
  })

  test('gas that another gateway spends counts here', async () => {
    const network = freshNetwork()
    const { settling } = own.other
    const launched = await does.launch(1, {}, transactionRow(network))
    await settling.record(inclusionOf(launched, { spentWei: 5n }), [], { isCostly: true })
    const { gas } = own.ledger
    await until(() => gas.spentOn(network, 'gateway', at) === 5n)
    expect(gas.wastedOn(network, 'gateway', at)).toBe(5n)
    // Both sums are of one row, so an addition here counts both.
    const more = await does.launch(1, {}, transactionRow(network))
    await own.ledger.settling.record(inclusionOf(more, { spentWei: 6n }), [])
    expect(gas.spentOn(network, 'gateway', at)).toBe(11n)
  })

  describe('the fence of a lane', () => {
    /** A gateway that believes to hold every lane since an epoch. */
    async function holder(epoch: { now: number }) {
      const gateway = crypto.randomUUID()
      await own.run(`INSERT INTO gateways (id, host, version, config_hash, fingerprints, seen_at)
        VALUES ('${gateway}', 'h', 'v', 'c', '{}', clock_timestamp())`)
      const fences = (lane: Lane) => ({ ...lane, holder: gateway, epoch: epoch.now })
      return openGateway(own.url, { gateway, fences })
    }
    const lanesOf = (network: string) =>
      own.run(`SELECT epoch, next_nonce FROM lanes WHERE network = '${network}' ORDER BY relayer`)

    test('writes of the holder count its account nonces and carry its epoch', async () => {
      const gateway = await holder({ now: 4 })
      try {
        const network = freshNetwork()
        const first = transactionRow(network)
        await own.run(`INSERT INTO lanes (network, relayer, holder, epoch, next_nonce)
          SELECT '${network}', name, '${gateway.gateway}', 4, 1
          FROM unnest('{${first.relayer},keeper}'::text[]) AS each (name)`)
        const acts = actionsOf({ ...own, ledger: gateway.ledger, changed: gateway.changed })
        const launched = await acts.launch(2, {}, first)
        const { settling } = gateway.ledger
        const [lane] = await lanesOf(network)
        expect(lane).toEqual({ epoch: 4, next_nonce: first.nonce + 1 })
        const newer = { ...first, hash: hashOf(next()) }
        const [a = '', b = ''] = launched.ids
        const hashes = [first.hash]
        await settling.replace({ transaction: newer, hashes, payments: [a, b], job: undefined })
        const [row] = await own.run(`SELECT epoch FROM transactions WHERE hash = '${newer.hash}'`)
        expect(row).toEqual({ epoch: 4 })
        await settling.record(inclusionOf({ transaction: newer }), paidBy([a]))
        expect(await settling.reopen(network, newer.hash)).toMatchObject({ payments: [a] })
        expect(await settling.reopen(network, hashOf(next()))).toMatchObject({ payments: [] })
        await settling.giveUp({ hashes: [newer.hash], payments: [b], job: undefined, at })
        expect(await acts.statesOf([b])).toEqual(['reverted'])
        const { job } = await acts.launchJob(network)
        expect(await settling.resendJob(job.id)).toHaveLength(1)
        const [after] = await lanesOf(network)
        expect(after).toEqual({ epoch: 4, next_nonce: job.nonce + 1 })
      } finally {
        gateway.close()
      }
    })

    test('error: after a takeover no write of the earlier epoch has an effect', async () => {
      const epoch = { now: 1 }
      const gateway = await holder(epoch)
      try {
        const network = freshNetwork()
        const transaction = transactionRow(network)
        await own.run(`INSERT INTO lanes (network, relayer, holder, epoch, next_nonce)
          SELECT '${network}', name, '${gateway.gateway}', 1, 0
          FROM unnest('{${transaction.relayer},keeper}'::text[]) AS each (name)`)
        const acts = actionsOf({ ...own, ledger: gateway.ledger, changed: gateway.changed })
        const launched = await acts.launch(1, {}, transaction)
        const { job, transaction: sent } = await acts.launchJob(network)
        const before = await lanesOf(network)
        await own.run(`UPDATE lanes SET epoch = 2 WHERE network = '${network}'`)
        const { settling } = gateway.ledger
        const { hash } = transaction
        const newer = { ...transaction, hash: hashOf(next()) }
        const another = transactionRow(network)
        const writes = [
          () => acts.launch(1, {}, another),
          () => settling.launchJob({ transaction: another, job: jobRow(another) }),
          () =>
            settling.replace({
              transaction: newer,
              hashes: [hash],
              payments: launched.ids,
              job: undefined,
            }),
          () => settling.record(inclusionOf({ transaction }), paidBy(launched.ids)),
          () => settling.giveUp({ hashes: [hash], payments: launched.ids, job: undefined, at }),
          () => settling.reopen(network, hash),
          () => settling.reopen(network, hashOf(next())),
          () => settling.resendJob(job.id),
        ]
        for (const write of writes) expect(await failureOf(write())).toBeInstanceOf(LaneLostError)
        expect(await does.payment(launched.ids[0])).toEqual(
          paymentOf(launched.rows[0] as Parameters<typeof paymentOf>[0]),
        )
        expect(await does.transaction(newer.hash)).toBeUndefined()
        expect(await does.transaction(another.hash)).toBeUndefined()
        expect(await does.transaction(sent.hash)).toMatchObject({ state: 'sent' })
        const after = await lanesOf(network)
        expect(after.map(({ next_nonce }) => next_nonce)).toEqual(
          before.map(({ next_nonce }) => next_nonce),
        )
      } finally {
        gateway.close()
      }
    })
  })
})
