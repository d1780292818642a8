import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import * as Entitlement from '../../db/Entitlement'
import * as Refund from '../../db/Refund'
import { idAt } from '../../db/sales'
import type { PaymentRow } from '../../db/schema'
import { dayMs } from '../../src/protocol/Time'
import { newAddress } from '../harness/products'
import { type Actions, actionsOf, inclusionOf, paidBy } from '../harness/settling-actions'
import { ledgers, type SettlingLedger } from '../harness/settling-ledgers'
import {
  at,
  freshNetwork,
  hashOf,
  jobRow,
  next,
  paymentRow,
  transactionRow,
} from '../harness/settling-rows'

/** Refunds are the same on both databases, and exact at two gateways. */

const account = newAddress()
/** Each test has a day of its own, because the sum of a day is one of all tests. */
let day = Math.floor(at / dayMs) * dayMs

for (const { name, open, isThere } of ledgers)
  describe.skipIf(!isThere)(name, () => {
    let own: SettlingLedger
    let does: Actions
    beforeAll(async () => {
      own = await open()
      does = actionsOf(own)
    })
    afterAll(() => own.close())

    const request = (
      paymentId: string | undefined,
      changes: Partial<Refund.RefundRequest> = {},
      of = own.ledger,
    ) =>
      of.refunds.request({
        ...{ paymentId: paymentId ?? '', account, amountAtomic: undefined, reason: 'operator' },
        ...{ note: undefined, perDayAtomic: 10n ** 9n, now: day, ...changes },
      })
    const both = <T>(
      count: number,
      run: (ledger: typeof own.ledger, index: number) => Promise<T>,
    ) =>
      Promise.all(
        Array.from({ length: count }, (_, index) => run(index % 2 ? own.other : own.ledger, index)),
      )
    const times = (all: readonly unknown[], value: unknown) =>
      all.filter((each) => each === value).length
    const find = (id: string | undefined) => own.other.refunds.find(id ?? '')

    test('error: a refund needs a confirmed payment of the gateway, and is at most its amount', async () => {
      day += dayMs
      const { ids } = await does.confirm(1)
      const [id] = ids
      expect(await request('pay_none')).toBe('not-confirmed')
      expect(await request((await does.launch()).ids[0])).toBe('not-confirmed')
      for (const product of ['desk', 'facilitator'] as const)
        expect(await request((await does.confirm(1, { product })).ids[0])).toBe('not-confirmed')
      for (const amountAtomic of [5_001n, 0n, -1n, 10n ** 30n])
        expect(await request(id, { amountAtomic })).toBe('too-much')
      expect(await find(id)).toBeUndefined()
      const note = 'It was late.'
      expect(await request(id, { amountAtomic: 4_999n, note })).toBe('requested')
      expect(await find(id)).toEqual({
        ...{ paymentId: id ?? '', account, amountAtomic: 4_999n, reason: 'operator', note },
        ...{ state: 'requested', attempts: 0, transaction: undefined, createdAt: day },
      })
      expect(await request(id)).toBe('exists')
      const whole = (await does.confirm(1)).ids[0]
      await request(whole)
      expect((await find(whole))?.amountAtomic).toBe(5_000n)
    })

    test('attack: two gateways request one refund once, and no more than a day has', async () => {
      day += dayMs
      const { ids } = await does.confirm(12)
      const same = await both(6, (of) => request(ids[0], {}, of))
      expect([times(same, 'requested'), times(same, 'exists')]).toEqual([1, 5])
      // The sum with the first one is exactly that of five.
      const perDayAtomic = 25_000n
      const ends = await both(10, (of, index) => request(ids[index + 1], { perDayAtomic }, of))
      expect([times(ends, 'requested'), times(ends, 'day-spent')]).toEqual([4, 6])
      const more = { perDayAtomic: 25_001n, amountAtomic: 2n }
      expect(await request(ids[11], more)).toBe('day-spent')
      expect(await request(ids[11], { ...more, amountAtomic: 1n })).toBe('requested')
      const last = { perDayAtomic, now: day + dayMs - 1 }
      const [other] = (await does.confirm(1)).ids
      expect(await request(other, last)).toBe('day-spent')
      expect(await request(other, { perDayAtomic, now: day + dayMs })).toBe('requested')
      day += dayMs
      for (let round = 0; round < 12; round++) {
        day += dayMs
        const { ids: two } = await does.confirm(2)
        const last = await both(2, (of, at) => request(two[at], { perDayAtomic: 5_000n }, of))
        expect(last.toSorted()).toEqual(['day-spent', 'requested'])
      }
    })

    const token = { upstreamStatus: 503, redeemUntil: at + 5 }
    const fail = (id: string | undefined, of = own.ledger) =>
      of.deliveries.fail(id ?? '', { ...token, redeemTokenHash: `hash ${id}` }, at + 2)

    test('attack: a payment is redeemed or refunded for it, and not both', async () => {
      day += dayMs
      const { deliveries } = own.ledger
      const [id, other] = (await does.confirm(2)).ids as [string, string]
      const undelivered = { reason: 'undelivered' } as const
      expect(await deliveries.begin(id)).toMatchObject({ delivery: 'delivering' })
      // A gateway that lives has a row.
      const [row] = await own.run(`SELECT * FROM payments WHERE id = '${id}'`)
      if (row && 'delivering_by' in row)
        await own.run(`INSERT INTO gateways (id) VALUES ('${row.delivering_by}')`)
      expect(await request(id, undelivered)).toBe('delivered')
      expect(await fail(id)).toBe(true)
      expect(await request(id, undelivered, own.other)).toBe('requested')
      expect(await deliveries.begin(id)).toBeUndefined()
      expect(await own.other.deliveries.begin(id)).toBeUndefined()
      await deliveries.begin(other)
      await deliveries.deliver(other, { upstreamStatus: 200, truncated: false }, at)
      expect(await request(other, undelivered)).toBe('delivered')
      expect(await request(other)).toBe('requested')
      // Whichever comes first at two gateways has it.
      for (let round = 0; round < 12; round++) {
        const [each = ''] = (await does.confirm(1)).ids
        const [begun, asked] = await Promise.all([
          own.ledger.deliveries.begin(each),
          request(each, undelivered, own.other),
        ])
        expect([begun === undefined, asked]).toEqual(
          begun ? [false, 'delivered'] : [true, 'requested'],
        )
      }
    })

    test('attack: a pass that is used is not refunded because its own answer was lost', async () => {
      day += dayMs
      const merchant = `m${next()}`
      const transaction = transactionRow(freshNetwork())
      const now = day
      const id = `${idAt(now - 30 * 3_600_000)}${'0'.repeat(12)}${next()}`
      const row = paymentRow(transaction, { id, merchant, payer: newAddress() })
      const opened = { merchant, route: '/forecast', fingerprint: undefined }
      const entitles = { kind: 'pass', ...opened, usesMax: 3, periodMs: 60_000 } as const
      const fresh = [{ row, rows: { entitles } }]
      await own.ledger.settling.launch({ transaction, fresh, again: [] })
      await own.ledger.settling.record(inclusionOf({ transaction }), paidBy([id]))
      const afterId = idAt(now - 8 * dayMs)
      const due = () =>
        own.ledger.refunds.undelivered({ merchants: [merchant], afterId, now, limit: 9 })
      expect((await due()).ids).toEqual([id])
      const used = { id: `use_${next()}`, attemptsMax: 6, now: at + 2 }
      const pass = { id: Entitlement.idOf('pass', id) }
      expect(await own.other.entitlements.use({ ...used, entitlement: pass })).toBe('used')
      expect((await due()).ids).toEqual([])
      expect(await request(id, { reason: 'undelivered' })).toBe('delivered')
      // One that failed is no use.
      await own.ledger.entitlements.end(used.id, false)
      expect((await due()).ids).toEqual([id])
      expect(await request(id, { reason: 'undelivered' })).toBe('requested')
    })

    test('a delivery that a stopped process had is no obstacle', async () => {
      day += dayMs
      const launched = await does.launch(1)
      const [id] = launched.ids
      await own.run(
        `UPDATE payments SET delivery = 'delivering', attempts = 1, state = 'confirmed', log_index = 0,
           block_number = 9, confirmed_at = 1 WHERE id = '${id}'`,
      )
      expect(await request(id, { reason: 'undelivered' })).toBe('requested')
    })

    /** Sends an attempt of the refund of a payment. */
    async function send(paymentId: string, attempts: number) {
      const transaction = transactionRow(freshNetwork(), { kind: 'refund' })
      const id = Refund.jobId(paymentId, attempts + 1)
      const job = jobRow(transaction, { id, product: 'gateway' })
      const rider = { kind: 'repay', paymentId, attempts } as const
      const refused = await own.ledger.settling.launchJob({ transaction, job, rider })
      const record = (success = true) =>
        own.ledger.settling.record(
          inclusionOf({ transaction }, { job: id, receipt: '{}', success }),
          [],
        )
      return { refused, transaction, id, record }
    }

    test('the state of a refund is that of its newest job, through a reorganisation', async () => {
      day += dayMs
      const { ids, transaction: paid } = await does.confirm(1)
      const [id = ''] = ids
      expect((await send(id, 0)).refused).toBe('refund-changed')
      await request(id)
      expect((await send(id, 1)).refused).toBe('refund-changed')
      const { refused, transaction, id: job, record } = await send(id, 0)
      expect(refused).toBeUndefined()
      const sent = { state: 'sent', attempts: 1, transaction: transaction.hash }
      expect(await find(id)).toMatchObject(sent)
      // No second attempt while the first one may be included.
      expect((await send(id, 1)).refused).toBe('refund-changed')
      const changed = await does.changedBy(() => record())
      expect(changed).toEqual([id, job].toSorted())
      expect(await find(id)).toMatchObject({ ...sent, state: 'refunded' })
      expect(
        (await own.ledger.refunds.open({ after: undefined, limit: 1_000 })).map(
          ({ paymentId }) => paymentId,
        ),
      ).not.toContain(id)
      const told = async () =>
        (await own.events(id)).filter(({ type }) => type === 'payment.refunded')
      const [event] = await told()
      expect(JSON.parse(event?.body ?? '').data).toMatchObject({
        ...{ payment: id, amountAtomic: '5000', refundedAtomic: '5000', refundedBy: account },
        ...{ refundReason: 'operator', refundTransaction: transaction.hash },
      })
      await own.ledger.settling.reopen(transaction.network, transaction.hash)
      expect(await find(id)).toMatchObject(sent)
      expect(
        (await own.ledger.refunds.open({ after: undefined, limit: 1_000 })).map(
          ({ paymentId }) => paymentId,
        ),
      ).toContain(id)
      await record()
      expect(await find(id)).toMatchObject({ ...sent, state: 'refunded' })
      // The payment is not needed for it any more.
      await own.ledger.settling.reopen(paid.network, paid.hash)
      expect((await find(id))?.state).toBe('refunded')
    })

    test('an attempt without effect is followed by another one, or paid by another transaction', async () => {
      day += dayMs
      const [id = '', other = ''] = (await does.confirm(2)).ids
      for (const each of [id, other]) {
        await request(each)
        const first = await send(each, 0)
        expect(await own.ledger.refunds.retry(each)).toBe(false)
        await first.record(false)
        expect(await find(each)).toMatchObject({ state: 'failed', attempts: 1 })
      }
      expect(times(await both(4, ({ refunds }) => refunds.retry(id)), true)).toBe(1)
      expect(await find(id)).toMatchObject({ state: 'requested', attempts: 2 })
      const second = await send(id, 2)
      expect(second.refused).toBeUndefined()
      await second.record()
      expect(await find(id)).toMatchObject({ state: 'refunded', attempts: 3 })
      expect(await own.ledger.refunds.retry(id)).toBe(false)
      const hash = hashOf(next())
      const changed = await does.changedBy(() =>
        own.ledger.refunds.setElsewhere(other, hash, at + 3),
      )
      expect(changed).toEqual([other])
      expect(await find(other)).toMatchObject({ state: 'refunded', transaction: hash, attempts: 1 })
      await own.ledger.refunds.setElsewhere(other, hash, at + 4)
      expect((await send(other, 1)).refused).toBe('refund-changed')
      const told = async (of: string) =>
        (await own.events(of)).filter(({ type }) => type === 'payment.refunded').length
      expect(await told(other)).toBe(1)
      // A job that only found the nonce used has confirmed a refund that another transaction paid.
      await own.ledger.refunds.setElsewhere(id, hash, at + 3)
      expect([(await find(id))?.transaction, await told(id)]).toEqual([hash, 2])
    })

    test('an attempt is written only while the payment is confirmed, and not delivered after all', async () => {
      day += dayMs
      const { ids, transaction } = await does.confirm(1)
      const [id = ''] = ids
      await request(id, { reason: 'undelivered' })
      await own.ledger.settling.reopen(transaction.network, transaction.hash)
      expect((await send(id, 0)).refused).toBe('payment-not-confirmed')
      // Its buyer waits for it again, and has the answer with the confirmation.
      await own.ledger.settling.record(inclusionOf({ transaction }), paidBy([id], true))
      await own.ledger.deliveries.deliver(id, { upstreamStatus: 200, truncated: false }, at)
      expect((await send(id, 0)).refused).toBe('refund-changed')
      expect(await find(id)).toMatchObject({ state: 'requested', attempts: 0 })
    })

    test('the newest refunds are listed first, page by page', async () => {
      day += dayMs
      const { ids } = await does.confirm(5)
      for (const id of ids) await request(id)
      const all = await own.ledger.refunds.list({ before: undefined, limit: 5 })
      expect(all.map(({ paymentId }) => paymentId)).toEqual(ids.toReversed())
      const page = await own.ledger.refunds.list({ before: ids[3], limit: 2 })
      expect(page.map(({ paymentId }) => paymentId)).toEqual([ids[2] ?? '', ids[1] ?? ''])
      const open = await own.ledger.refunds.open({ after: undefined, limit: 1_000 })
      expect(open.slice(-5).map(({ paymentId }) => paymentId)).toEqual([...ids])
      const next = await own.ledger.refunds.open({ after: ids[1], limit: 2 })
      expect(next.map(({ paymentId }) => paymentId)).toEqual([ids[2] ?? '', ids[3] ?? ''])
      const times = (state: string) => open.filter((each) => each.state === state).length
      expect(await own.ledger.refunds.countOpen()).toEqual({
        ...{ requested: times('requested'), sent: times('sent'), failed: times('failed') },
      })
    })

    test('what was never delivered is found when it can no longer be redeemed', async () => {
      day += dayMs
      const merchant = `m${next()}`
      const now = day
      const before = (ms: number) => `${idAt(now - ms)}${'0'.repeat(12)}${next()}`
      const confirm = async (ms: number, changes: Partial<PaymentRow> = {}) => {
        const id = before(ms)
        await does.confirm(1, { id, merchant, ...changes })
        return id
      }
      const hourMs = 3_600_000
      const [old, refunded, delivered, recent] = [
        await confirm(9 * dayMs),
        await confirm(40 * hourMs),
        await confirm(39 * hourMs),
        await confirm(24 * hourMs),
      ]
      const left = await confirm(30 * hourMs)
      await confirm(30 * hourMs, { merchant: 'other' })
      await confirm(30 * hourMs, { product: 'facilitator' })
      await does.launch(1, { id: before(30 * hourMs), merchant })
      await request(refunded)
      await own.ledger.deliveries.begin(delivered)
      await own.ledger.deliveries.deliver(delivered, { upstreamStatus: 200, truncated: false }, at)
      const failed = async (redeemUntil: number) => {
        const id = await confirm(28 * hourMs)
        await own.ledger.deliveries.begin(id)
        const result = { upstreamStatus: 503, redeemUntil, redeemTokenHash: `hash ${id}` }
        await own.ledger.deliveries.fail(id, result, at)
        return id
      }
      const [ended] = [await failed(now), await failed(now + 1), await failed(now - 9 * dayMs)]
      const read = async (limit: number, afterId = idAt(now - 8 * dayMs)) => {
        const ids: string[] = []
        for (let last = ''; last !== afterId; ) {
          last = afterId
          const merchants = [merchant, 'none']
          const found = await own.ledger.refunds.undelivered({ merchants, afterId, now, limit })
          ids.push(...found.ids)
          afterId = found.lastId
        }
        return { ids: [...new Set(ids)].toSorted(), afterId }
      }
      const all = await read(1_000)
      expect(all.ids).toEqual([left, ended ?? ''].toSorted())
      expect(all.ids).not.toContain(recent)
      expect((await read(2)).ids).toEqual(all.ids)
      expect((await read(2, idAt(now - 10 * dayMs))).ids).toContain(old)
      // From where the last one ended only those are found that were waited for.
      expect((await read(5, all.afterId)).ids).toEqual([ended ?? ''])
      // Of more than fit into one read, the next ones follow, and then the first ones again.
      const more = [await failed(now - 3), await failed(now - 2)]
      const parts = []
      for (let part = 0; part < 5; part++) parts.push(await read(2, all.afterId))
      expect(new Set(parts.flatMap(({ ids }) => ids))).toEqual(new Set([ended ?? '', ...more]))
      for (const each of more) await request(each)
      await request(ended)
      expect((await read(5, all.afterId)).ids).toEqual([])
    })
  })
