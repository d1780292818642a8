import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { paymentOf } from '../../db/rows'
import { outcomeOf } from '../harness/outcome'
import { type Actions, actionsOf, inclusionOf, paidBy } from '../harness/settling-actions'
import { ledgers, type SettlingLedger } from '../harness/settling-ledgers'
import {
  at,
  freshNetwork,
  hashOf,
  next,
  paymentRow,
  transactionRow,
} from '../harness/settling-rows'

/** What ends payments and deliveries does the same on both databases. */

for (const { name, open, isThere } of ledgers)
  describe.skipIf(!isThere)(name, () => {
    let own: SettlingLedger
    let does: Actions
    beforeAll(async () => {
      own = await open()
      does = actionsOf(own)
    })
    afterAll(() => own.close())

    describe('record', () => {
      test('a record confirms members by their own free log and reverts the others', async () => {
        const launched = await does.launch(5)
        const [a = '', b = '', c = '', d = '', e = ''] = launched.ids
        const { settling, payments, transactions } = own.ledger
        // It has the log 7 of this transaction.
        const { network, hash } = launched.transaction
        await settling.confirm(e, { transaction: hash, logIndex: 7, blockNumber: 200n }, at)
        const members = [
          { id: a, logs: [7, 8], startsDelivery: false },
          { id: b, logs: [8, 9], startsDelivery: true },
          { id: c, logs: [8, 9], startsDelivery: false },
          { id: d, logs: [], startsDelivery: true },
        ]
        const changed = await does.changedBy(async () => {
          const ends = await settling.record(inclusionOf(launched), members)
          const found = await Promise.all([a, b].map(does.payment))
          expect(ends).toEqual([...found, undefined, undefined])
        })
        expect(changed).toEqual([a, b, c, d].toSorted())
        expect(await does.statesOf(launched.ids)).toEqual([
          'confirmed',
          'confirmed',
          'reverted',
          'reverted',
          'confirmed',
        ])
        expect(await does.payment(a)).toMatchObject({
          transaction: hash,
          logIndex: 8,
          blockNumber: 200n,
          confirmedAt: at + 1,
          delivery: 'none',
          attempts: 0,
        })
        expect(await does.payment(b)).toMatchObject({
          logIndex: 9,
          delivery: 'delivering',
          attempts: 1,
        })
        expect(await payments.takenLogs(network, hash)).toEqual(new Set([7, 8, 9]))
        expect(await does.transaction(hash)).toEqual({ state: 'mined', block: 200, cost: '11' })
        expect(await transactions.includedFrom(network, 200n)).toMatchObject([{ hash }])
        expect(await transactions.includedFrom(network, 201n)).toEqual([])
        for (const id of [a, b]) {
          const [message, ...others] = await own.events(id)
          expect(others).toEqual([])
          expect(message).toMatchObject({ type: 'payment.confirmed' })
          expect(JSON.parse(message?.body ?? '').data).toMatchObject({
            payment: id,
            transaction: hash,
          })
        }
        for (const id of [c, d]) expect(await own.events(id)).toEqual([])
      })

      test('a record returns the payments as the database has them', async () => {
        const launched = await does.launch(4)
        const [first = '', , third = '', fourth = ''] = launched.ids
        const { settling } = own.ledger
        const { hash } = launched.transaction
        // It was delivered before its block was removed.
        await own.run(`UPDATE payments SET delivery = 'delivered', attempts = 2, delivered_at = 5,
          upstream_status = 200 WHERE id = '${third}'`)
        const record = async (logs: (index: number) => readonly number[]) => {
          const rows = launched.rows.slice(0, 3)
          const members = rows.map((row, index) => ({
            ...{ id: row.id, logs: logs(index), payment: paymentOf(row) },
            startsDelivery: index !== 1,
          }))
          const ends = await settling.record(inclusionOf(launched), members)
          expect(ends).toEqual(await Promise.all(rows.map(({ id }) => does.payment(id))))
          return ends.map((end) => end?.delivery)
        }
        const deliveries = ['delivering', 'none', 'delivered'] as const
        expect(await record((index) => [index])).toEqual([...deliveries])
        // Its block is removed, and another payment gets the first log.
        await settling.reopen(launched.transaction.network, hash)
        const assignment = { transaction: hash, logIndex: 0, blockNumber: 200n }
        await settling.confirm(fourth, assignment, at)
        expect(await record((index) => [index, index + 1])).toEqual([...deliveries])
        expect((await does.payment(first)).logIndex).toBe(1)
      })

      test('a failed transaction reverts its members, and those of a newer one stay', async () => {
        const launched = await does.launch(2)
        const [a = '', b = ''] = launched.ids
        const { settling, payments } = own.ledger
        const { transaction } = launched
        const newer = { ...transaction, hash: hashOf(next()) }
        const hashes = [transaction.hash]
        await settling.replace({ transaction: newer, hashes, payments: [b], job: undefined })
        expect(await payments.findById(b)).toMatchObject({ transaction: newer.hash })
        const inclusion = inclusionOf(launched, { success: false })
        const ends = await settling.record(inclusion, paidBy(launched.ids, true))
        expect(ends).toEqual([undefined, undefined])
        expect(await does.statesOf([a, b])).toEqual(['reverted', 'broadcast'])
        expect(await does.transaction(transaction.hash)).toMatchObject({ state: 'failed' })
      })

      test('a reverted or an expired member is confirmed when its transaction is mined', async () => {
        const launched = await does.launch(2)
        const [a = '', b = ''] = launched.ids
        const { settling } = own.ledger
        await settling.revert(a, [launched.transaction.hash])
        await settling.expire(b, true)
        const ends = await settling.record(inclusionOf(launched), paidBy(launched.ids))
        expect(ends).toEqual([await does.payment(a), await does.payment(b)])
        expect(await does.statesOf([a, b])).toEqual(['confirmed', 'confirmed'])
        expect((await does.payment(b)).nonceUsed).toBe(false)
      })

      test('a record adds up gas by day and product, and the cost of failed payments', async () => {
        const { settling, gas } = own.ledger
        const network = freshNetwork()
        const spent = () => [
          gas.spentOn(network, 'gateway', at),
          gas.wastedOn(network, 'gateway', at),
          gas.spentOn(network, 'desk', at),
        ]
        expect(spent()).toEqual([0n, 0n, 0n])
        const big = 2n ** 70n
        const end = async (isCostly: boolean, isPaid: boolean) => {
          const launched = await does.launch(1, {}, transactionRow(network))
          const members = isPaid ? paidBy(launched.ids) : []
          const inclusion = inclusionOf(launched, { spentWei: big })
          await settling.record(inclusion, members, { isCostly })
        }
        await end(false, false)
        await end(true, true)
        expect(spent()).toEqual([2n * big, 0n, 0n])
        await end(true, false)
        expect(spent()).toEqual([3n * big, big, 0n])
        const rows = await own.run(
          `SELECT wei, wasted_wei FROM gas_spent WHERE network = '${network}'`,
        )
        expect(rows).toEqual([{ wei: String(3n * big), wasted_wei: String(big) }])
      })

      // SQLite has one process, which records a receipt once.
      test.skipIf(name === 'SQLite')(
        'gas counts once when a receipt is recorded again',
        async () => {
          const { settling, gas } = own.ledger
          const network = freshNetwork()
          const launched = await does.launch(1, {}, transactionRow(network))
          for (let count = 0; count < 2; count++)
            await settling.record(inclusionOf(launched), [], { isCostly: true })
          expect(gas.spentOn(network, 'gateway', at)).toBe(11n)
          expect(gas.wastedOn(network, 'gateway', at)).toBe(11n)
        },
      )

      test('a record reports once that the gas budget of the day is spent', async () => {
        const network = freshNetwork()
        own.subscribe([{ network, product: 'gateway', wei: 20n }])
        for (let count = 0; count < 3; count++) {
          const launched = await does.launch(1, {}, transactionRow(network))
          await own.ledger.settling.record(inclusionOf(launched), paidBy(launched.ids))
        }
        const [message, ...others] = await own.events(network)
        expect(others).toEqual([])
        expect(JSON.parse(message?.body ?? '').data).toMatchObject({
          product: 'gateway',
          spentWei: '22',
          budgetWei: '20',
        })
      })

      test('another transaction at the nonce displaces the one that was recorded there', async () => {
        const first = await does.confirm(2)
        const { settling, payments } = own.ledger
        const { transaction: old } = first
        const transaction = { ...old, hash: hashOf(next()) }
        const launched = await does.launch(1, {}, transaction)
        const changed = await does.changedBy(async () => {
          const ends = await settling.record(inclusionOf(launched), paidBy(launched.ids))
          expect(ends).toMatchObject([{ state: 'confirmed' }])
        })
        expect(changed).toEqual([...first.ids, ...launched.ids].toSorted())
        expect(await does.statesOf(first.ids)).toEqual(['broadcast', 'broadcast'])
        expect(await does.transaction(old.hash)).toEqual({
          state: 'replaced',
          block: null,
          cost: null,
        })
        expect([...(await payments.orphans(old.network))].toSorted()).toEqual([...first.ids])
      })
    })

    describe('changes of one payment', () => {
      test('one log pays for one payment', async () => {
        const launched = await does.launch(2)
        const [a = '', b = ''] = launched.ids
        const { settling } = own.ledger
        const assignment = { transaction: launched.transaction.hash, logIndex: 4, blockNumber: 9n }
        expect(await does.changedBy(() => settling.confirm(a, assignment, at))).toEqual([a])
        expect(await does.changedBy(() => settling.confirm(a, assignment, at))).toEqual([])
        expect(await outcomeOf(settling.confirm(b, assignment, at))).toThrow()
        expect(await does.statesOf([a, b])).toEqual(['confirmed', 'broadcast'])
        expect((await own.events(a)).map(({ type }) => type)).toEqual(['payment.confirmed'])
      })

      test('only a payment that is open expires, and only one of the transactions is reverted', async () => {
        const { ids, transaction } = await does.launch(2)
        const [a = '', b = ''] = ids
        const { settling } = own.ledger
        expect(await does.changedBy(() => settling.revert(a, [hashOf(next())]))).toEqual([])
        expect(await does.changedBy(() => settling.revert(a, [transaction.hash]))).toEqual([a])
        expect(await does.changedBy(() => settling.revert(a, [transaction.hash]))).toEqual([])
        expect(await does.changedBy(() => settling.expire(a, false))).toEqual([a])
        expect(await does.changedBy(() => settling.expire(a, true))).toEqual([])
        expect(await does.payment(a)).toMatchObject({ state: 'expired', nonceUsed: false })
        await settling.record(inclusionOf({ transaction }), paidBy([b]))
        expect(await does.changedBy(() => settling.expire(b, true))).toEqual([])
        expect(await does.changedBy(() => settling.revert(b, [transaction.hash]))).toEqual([])
        expect(await does.statesOf([b])).toEqual(['confirmed'])
      })

      test('a reorganisation opens the transaction and what it paid', async () => {
        const { ids, transaction } = await does.confirm(2)
        const { settling } = own.ledger
        const { network, hash } = transaction
        const changed = await does.changedBy(async () => {
          const { payments, job } = await settling.reopen(network, hash)
          expect([...payments].toSorted()).toEqual([...ids])
          expect(job).toBeUndefined()
        })
        expect(changed).toEqual([...ids])
        expect(await does.statesOf(ids)).toEqual(['broadcast', 'broadcast'])
        expect(await does.payment(ids[0])).toMatchObject({
          logIndex: undefined,
          confirmedAt: undefined,
        })
        expect(await does.transaction(hash)).toEqual({ state: 'sent', block: null, cost: null })
        expect(await settling.reopen(network, hash)).toEqual({ payments: [], job: undefined })
      })

      test('giving up reverts what its transactions contain', async () => {
        const { ids, transaction } = await does.launch(2)
        const other = await does.launch(1)
        const giving = {
          hashes: [transaction.hash],
          payments: [...ids, ...other.ids],
          job: undefined,
          at,
        }
        const { settling } = own.ledger
        expect(await does.changedBy(() => settling.giveUp(giving))).toEqual([...ids])
        expect(await does.statesOf(giving.payments)).toEqual(['reverted', 'reverted', 'broadcast'])
        expect(await does.transaction(transaction.hash)).toMatchObject({ state: 'replaced' })
      })
    })

    describe('deliveries', () => {
      const failure = (hash: string) => ({
        upstreamStatus: 502,
        redeemTokenHash: hash,
        redeemUntil: at + 9,
      })

      test('a delivery begins, fails, begins again and ends', async () => {
        const { ids } = await does.launch()
        const [id = ''] = ids
        const { deliveries, payments, settling } = own.ledger
        expect(await deliveries.begin(id)).toBeUndefined()
        const { transaction } = await does.payment(id)
        await settling.confirm(id, { transaction, logIndex: 0, blockNumber: 3n }, at)
        expect(await deliveries.deliver(id, { upstreamStatus: 200, truncated: false }, at)).toBe(
          false,
        )
        expect(await deliveries.fail(id, failure('none'), at)).toBe(false)
        expect(await deliveries.begin(id)).toEqual(await does.payment(id))
        expect(await does.payment(id)).toMatchObject({ delivery: 'delivering', attempts: 1 })
        const token = hashOf(next())
        expect(await deliveries.fail(id, failure(token), at)).toBe(true)
        const failed = await does.payment(id)
        expect(failed).toMatchObject({ delivery: 'none', attempts: 1, ...failure(token) })
        expect(await payments.findByRedeemToken(token)).toEqual(failed)
        const events = await own.events(id)
        expect(events.map(({ type }) => type)).toEqual(['payment.confirmed', 'delivery.failed'])
        expect(JSON.parse(events[1]?.body ?? '').data).toMatchObject({
          attempts: 1,
          upstreamStatus: 502,
        })
        // The delivery that ended while its process was away begins again.
        await deliveries.begin(id)
        expect(await deliveries.begin(id)).toMatchObject({ attempts: 3 })
        expect(
          await deliveries.deliver(id, { upstreamStatus: 200, truncated: false }, at + 5),
        ).toBe(true)
        // The stream was cut.
        expect(await deliveries.deliver(id, { upstreamStatus: 200, truncated: true }, at + 6)).toBe(
          true,
        )
        const delivered = { delivery: 'delivered', truncated: true, deliveredAt: at + 5 }
        expect(await does.payment(id)).toMatchObject({ upstreamStatus: 200, ...delivered })
        expect(await deliveries.begin(id)).toBeUndefined()
        expect(await deliveries.fail(id, failure('late'), at)).toBe(false)
      })

      test('changes of one payment at once are made in their order', async () => {
        const { ids } = await does.confirm(3)
        const { deliveries } = own.ledger
        const [id = ''] = ids
        const begins = await Promise.all([...ids, id].map((each) => deliveries.begin(each)))
        expect(begins.map((each) => each?.attempts)).toEqual([1, 1, 1, 2])
        const deliver = (each: string, truncated: boolean) =>
          deliveries.deliver(each, { upstreamStatus: 200, truncated }, at)
        const ends = [...ids.map((each) => deliver(each, false)), deliver(id, true)]
        expect(await Promise.all(ends)).toEqual([true, true, true, true])
        const stored = await Promise.all(ids.map(does.payment))
        expect(stored.map(({ truncated }) => truncated)).toEqual([true, false, false])
      })

      test('handing over is true once', async () => {
        const { ids } = await does.confirm()
        const [id = ''] = ids
        const { deliveries } = own.ledger
        const ends = await Promise.all([1, 2, 3].map(() => deliveries.handOver(id, at + 2)))
        expect(ends.filter(Boolean)).toHaveLength(1)
        const handed = { delivery: 'delivered', attempts: 1, deliveredAt: at + 2, answered: false }
        expect(await does.payment(id)).toMatchObject(handed)
        await deliveries.markAnswered(id)
        expect(await does.payment(id)).toMatchObject({ answered: true })
        expect(await deliveries.markAnswered('pay_none')).toBeUndefined()
      })
    })

    describe('reads', () => {
      test('payments are found by money, key, payer and log', async () => {
        const key = `key ${next()}`
        const launched = await does.launch(1, { idempotencyKey: key })
        const [row] = launched.rows as [(typeof launched.rows)[number]]
        const { payments, settling, transactions } = own.ledger
        const { merchant, route, payer, network } = row
        const scope = { merchant, route, payer, key }
        expect(await payments.findByIdempotencyKey(scope)).toMatchObject({ id: row.id })
        expect(await payments.findByIdempotencyKey({ ...scope, route: '/other' })).toBeUndefined()
        expect(await payments.hasPaid(row)).toBe(false)
        expect(await payments.arrivalOf(row.id)).toEqual({ receivedAt: at, knownBlock: 100n })
        expect(await outcomeOf(payments.arrivalOf('pay_none'))).toThrow('no payment pay_none')
        expect((await payments.countBroadcast()).get(network)).toBe(1)
        expect((await payments.unfinished()).some(({ id }) => id === row.id)).toBe(true)
        const pending = await payments.pending(1_000)
        expect(pending.count).toBeGreaterThan(0)
        expect(pending.oldest.find(({ id }) => id === row.id)).toEqual({
          id: row.id,
          network,
          merchant,
          route,
          amountAtomic: 5_000n,
          state: 'broadcast',
          transaction: launched.transaction.hash,
          createdAt: at,
        })
        const { hash } = launched.transaction
        expect(await transactions.hasPayment(hash)).toBe(true)
        expect(await transactions.hasPayment(hash, row.id)).toBe(true)
        expect(await transactions.hasPayment(hash, 'pay_none')).toBe(false)
        expect(await transactions.hasPayment(hashOf(next()))).toBe(false)
        await settling.record(inclusionOf(launched), paidBy(launched.ids))
        expect(await payments.hasPaid(row)).toBe(true)
        expect(await payments.logOwner(network, hash, 0)).toBe(row.id)
        expect(await payments.logOwner(network, hash, 1)).toBeUndefined()
        expect((await payments.countBroadcast()).has(network)).toBe(false)
      })

      test('a payment whose key expired gives the key free', async () => {
        const key = `key ${next()}`
        const first = await does.launch(1, { idempotencyKey: key })
        const { payments, settling } = own.ledger
        await settling.expire(first.ids[0] ?? '', false)
        const [row] = first.rows as [(typeof first.rows)[number]]
        const scope = { merchant: row.merchant, route: row.route, payer: row.payer, key }
        expect(await payments.findByIdempotencyKey(scope)).toBeUndefined()
        const second = await does.launch(1, { idempotencyKey: key })
        expect(await payments.findByIdempotencyKey(scope)).toMatchObject({
          id: second.ids[0] ?? '',
        })
      })

      test('transactions are found by account nonce, block and payment', async () => {
        const { transaction, ids } = await does.confirm()
        const { transactions } = own.ledger
        const { network, hash, nonce, relayer, state } = transaction
        const included = { hash, blockNumber: 200, relayer, nonce }
        const at = (from: number, to: number) =>
          transactions.includedAt(network, relayer, { from, to })
        expect(await at(nonce, nonce + 1)).toEqual([included])
        expect(await at(nonce - 1, nonce)).toEqual([])
        expect(await transactions.includedFrom(network, 1n)).toEqual([included])
        expect(state).toBe('sent')
        expect(await transactions.ofPayment(ids[0] ?? '')).toEqual([
          { hash, state: 'mined', relayer, nonce },
        ])
        const external = paymentRow(
          { network, hash: hashOf(next()) },
          { state: 'confirmed', logIndex: 0, blockNumber: 300n, confirmedAt: 1 },
        )
        await own.ledger.settling.storeExternal({ row: external })
        expect(await transactions.includedFrom(network, 300n)).toEqual([
          { hash: external.transactionHash, blockNumber: 300, relayer: undefined, nonce: 0 },
        ])
        await own.ledger.settling.reopen(network, external.transactionHash)
        expect(await own.ledger.payments.orphans(network)).toEqual([external.id])
      })

      test('the gas of payees is a part of the limits of their transactions', async () => {
        const { payments } = own.ledger
        const since = 1_760_000_000_000 + 1_000 * next()
        const id = () => `pay_${since.toString(16).padStart(12, '0')}${next()}`
        const transaction = transactionRow(freshNetwork())
        const facilitated = { product: 'facilitator' } as const
        const [a, b] = [id(), id()]
        const fresh = [a, b].map((each) => ({
          row: paymentRow(transaction, { id: each, ...facilitated }),
        }))
        await own.ledger.settling.launch({ transaction, fresh, again: [] })
        expect(await payments.payeeGasOf(a)).toBe(50_000)
        expect(await payments.payeeGasOf('pay_none')).toBe(0)
        const { network } = transaction
        const listed = (await payments.payeeGasSince(since)).filter(
          (each) => each.network === network,
        )
        const { payee } = paymentRow(transaction)
        expect(listed).toEqual([{ network, payee, gas: 100_000 }])
      })
    })
  })
