import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { Address } from 'viem'
import type { Payment } from '../../db/Payment'
import { paymentOf } from '../../db/rows'
import type { PaymentRow } from '../../db/schema'
import { outcomeOf } from '../harness/outcome'
import { type Actions, actionsOf, inclusionOf, orderOf } from '../harness/settling-actions'
import { ledgers, type SettlingLedger } from '../harness/settling-ledgers'
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

/** The commits of settlement do the same on both databases. */

for (const { name, open, isThere } of ledgers)
  describe.skipIf(!isThere)(name, () => {
    let own: SettlingLedger
    let does: Actions
    beforeAll(async () => {
      own = await open()
      does = actionsOf(own)
    })
    afterAll(() => own.close())

    describe('launch', () => {
      test('a launch writes new payments and those that are sent again, in their order', async () => {
        const first = await does.launch(2)
        const { settling, payments, transactions } = own.ledger
        await settling.revert(first.ids[0] ?? '', [first.transaction.hash])
        const again = [await does.payment(first.ids[0])]
        const transaction = transactionRow(first.transaction.network, { kind: 'batch' })
        const row = paymentRow(transaction, {
          method: 'permit2',
          permit2612Value: 9n,
          permit2612Deadline: 10n,
          permit2612Signature: '0xaa',
          ceilingAtomic: 6_000n,
          facilitator: asset,
        })
        const changed = await does.changedBy(async () => {
          const end = await settling.launch({ transaction, fresh: [{ row }], again })
          const resent = { ...again[0], state: 'broadcast', transaction: transaction.hash }
          expect(end).toEqual({ kind: 'stored', payments: [resent as Payment, paymentOf(row)] })
        })
        expect(changed).toEqual([first.ids[0] ?? ''])
        expect(await does.payment(row.id)).toEqual(paymentOf(row))
        const ids = (await transactions.paymentsOf([transaction.hash])).map(({ id }) => id)
        expect(ids).toEqual([first.ids[0] ?? '', row.id])
        const { payer, nonce, network } = row
        const lower = { network, nonce, asset: asset.toLowerCase(), payer: payer.toLowerCase() }
        expect(await payments.find(lower as typeof row)).toEqual(paymentOf(row))
      })

      test('money that is stored is known, and nothing is written', async () => {
        const { rows, transaction: old } = await does.launch()
        const [known] = rows as [PaymentRow]
        const transaction = transactionRow(old.network)
        const payer = known.payer.toLowerCase() as Address
        const copy = paymentRow(transaction, { nonce: known.nonce, payer })
        const other = paymentRow(transaction)
        const end = await own.ledger.settling.launch({
          transaction,
          fresh: [{ row: other }, { row: copy }],
          again: [],
        })
        expect(end).toEqual({
          kind: 'known',
          payments: new Map([[copy.id, paymentOf(known)]]),
        })
        expect(await does.transaction(transaction.hash)).toBeUndefined()
        expect(await own.ledger.payments.findById(other.id)).toBeUndefined()
      })

      test('several transactions are written together, or none of them', async () => {
        const { settling, payments } = own.ledger
        const { rows } = await does.launch()
        const [known] = rows as [PaymentRow]
        const launchOf = (changes: Partial<PaymentRow> = {}) => {
          const transaction = transactionRow(known.network)
          const row = paymentRow(transaction, changes)
          return { transaction, row, fresh: [{ row }], again: [] }
        }
        const both = [launchOf(), launchOf()] as const
        const stored = both.map(({ row }) => paymentOf(row))
        expect(await settling.launch(...both)).toEqual({ kind: 'stored', payments: stored })
        for (const { transaction } of both)
          expect(await does.transaction(transaction.hash)).toMatchObject({ state: 'sent' })
        const { payer, nonce } = known
        const others = [launchOf(), launchOf({ payer, nonce }), launchOf()] as const
        const copy = others[1].row.id
        expect(await settling.launch(...others)).toEqual({
          kind: 'known',
          payments: new Map([[copy, paymentOf(known)]]),
        })
        for (const { transaction, row } of others) {
          expect(await does.transaction(transaction.hash)).toBeUndefined()
          expect(await payments.findById(row.id)).toBeUndefined()
        }
      })

      test('error: a payment that is not reverted is not sent again, and nothing is written', async () => {
        const { ids, transaction: old } = await does.launch()
        const transaction = transactionRow(old.network)
        const again = [await does.payment(ids[0])]
        expect(
          await outcomeOf(own.ledger.settling.launch({ transaction, fresh: [], again })),
        ).toThrow(`payment ${ids[0]} is not to be sent again`)
        expect(await does.transaction(transaction.hash)).toBeUndefined()
      })

      test('an abandoned transaction can be launched again', async () => {
        const { transaction, ids } = await does.launch()
        const { settling } = own.ledger
        await settling.giveUp({ hashes: [transaction.hash], payments: ids, job: undefined, at })
        expect(await does.transaction(transaction.hash)).toMatchObject({ state: 'replaced' })
        const again = [await does.payment(ids[0])]
        const end = await settling.launch({ transaction, fresh: [], again })
        expect(end.kind).toBe('stored')
        expect(await does.transaction(transaction.hash)).toMatchObject({ state: 'sent' })
        expect(await own.ledger.transactions.ofPayment(ids[0] ?? '')).toHaveLength(1)
      })

      test('a launch names the payment whose order the quota refuses', async () => {
        const transaction = transactionRow(freshNetwork())
        const [plain, desk] = [
          paymentRow(transaction),
          paymentRow(transaction, { product: 'desk', merchant: '' }),
        ]
        const order = orderOf(desk)
        const quota = { payer: desk.payer, since: '', max: 0 }
        const fresh = [{ row: plain }, { row: desk, rows: { order, quota } }]
        const refused = { kind: 'refused', ids: [desk.id], reason: 'order-quota' } as const
        const { settling } = own.ledger
        expect(await settling.launch({ transaction, fresh, again: [] })).toEqual(refused)
        expect(await own.ledger.payments.findById(plain.id)).toBeUndefined()
        const allowed = [{ row: plain }, { row: desk, rows: { order, quota: undefined } }]
        const end = await settling.launch({ transaction, fresh: allowed, again: [] })
        expect(end.kind).toBe('stored')
        const [row] = await own.run(`SELECT payment_id FROM orders WHERE id = '${order.id}'`)
        expect(row).toEqual({ payment_id: desk.id })
      })

      test('a launch settles an authorization that is metered, with its delivery', async () => {
        const transaction = transactionRow(freshNetwork())
        const upto = { method: 'permit2', ceilingAtomic: 9_000n, facilitator: asset } as const
        const row = paymentRow(transaction, upto)
        const rows = { settles: 'authorization' } as const
        const { settling } = own.ledger
        const refused = { kind: 'refused', ids: [row.id], reason: 'money-authorized' } as const
        expect(await settling.launch({ transaction, fresh: [{ row, rows }], again: [] })).toEqual(
          refused,
        )
        await does.authorize(row)
        const plain = { ...row, id: paymentRow(transaction).id }
        expect(await settling.launch({ transaction, fresh: [{ row: plain }], again: [] })).toEqual({
          ...refused,
          ids: [plain.id],
        })
        const end = await settling.launch({ transaction, fresh: [{ row, rows }], again: [] })
        const delivered = {
          upstreamStatus: 200,
          truncated: true,
          delivery: 'delivered',
          attempts: 1,
          answered: true,
          deliveredAt: at,
        } as const
        const stored = paymentOf({ ...row, ...delivered })
        expect(end).toEqual({ kind: 'stored', payments: [stored] })
        expect(await does.payment(row.id)).toEqual(stored)
      })
    })

    describe('storeExternal', () => {
      const row = (changes: Partial<PaymentRow> = {}) =>
        paymentRow(
          { network: freshNetwork(), hash: hashOf(next()) },
          { state: 'confirmed', logIndex: 3, blockNumber: 9n, confirmedAt: at, ...changes },
        )

      test('an external settlement is stored once, with its event', async () => {
        const external = row()
        const { settling, payments } = own.ledger
        const changed = await does.changedBy(async () =>
          expect(await settling.storeExternal({ row: external })).toBe('stored'),
        )
        expect(changed).toEqual([external.id])
        expect(await does.payment(external.id)).toEqual(paymentOf(external))
        expect((await own.events(external.id)).map(({ type }) => type)).toEqual([
          'payment.confirmed',
        ])
        const { network, transactionHash } = external
        expect(await payments.logOwner(network, transactionHash, 3)).toBe(external.id)
        const copy = { ...external, id: row().id, logIndex: 4 }
        expect(await settling.storeExternal({ row: copy })).toBe('known')
        const sameLog = row({ network, chainId: external.chainId, transactionHash })
        expect(await settling.storeExternal({ row: sameLog })).toBe('known')
      })

      test('an external settlement names why the rows of a product were refused', async () => {
        const external = row({ product: 'desk' })
        const quota = { payer: external.payer, since: '', max: 0 }
        const rows = { order: orderOf(external), quota }
        const changed = await does.changedBy(async () =>
          expect(await own.ledger.settling.storeExternal({ row: external, rows })).toEqual({
            refused: 'order-quota',
          }),
        )
        expect(changed).toEqual([])
        expect(await own.ledger.payments.findById(external.id)).toBeUndefined()
      })
    })

    describe('jobs', () => {
      test('a job is launched, replaced and ended', async () => {
        const launch = await does.launchJob()
        const { job, transaction } = launch
        const { jobs, settling } = own.ledger
        expect(await jobs.find(job.id)).toEqual(job)
        let newer = transaction
        const changed = await does.changedBy(async () => {
          newer = await does.replaceJob(launch)
        })
        expect(changed).toEqual([job.id])
        expect(await jobs.find(job.id)).toEqual({ ...job, transactionHash: newer.hash })
        const unfinished = (await own.ledger.transactions.unfinished()).filter(
          (each) => each.job === job.id,
        )
        expect(unfinished).toMatchObject([{ transaction }, { transaction: newer }])
        const inclusion = inclusionOf(launch, {
          hashes: [transaction.hash, newer.hash],
          job: job.id,
          receipt: '{"a":1}',
        })
        const ended = await does.changedBy(() => settling.record(inclusion, []))
        expect(ended).toEqual([job.id])
        const end = { state: 'confirmed', blockNumber: 200n, receipt: '{"a":1}', endedAt: at + 1 }
        expect(await jobs.find(job.id)).toEqual({ ...job, ...end } as typeof job)
        expect(await does.transaction(transaction.hash)).toMatchObject({
          state: 'mined',
          cost: '11',
        })
        expect(await does.transaction(newer.hash)).toMatchObject({ state: 'replaced', cost: null })
        // It has ended, so a second end changes nothing.
        expect(await does.changedBy(() => settling.record(inclusion, []))).toEqual([])
      })

      test('error: a job is launched once', async () => {
        const { transaction, job } = await does.launchJob()
        const second = { ...transaction, hash: hashOf(next()) }
        const { settling } = own.ledger
        expect(await outcomeOf(settling.launchJob({ transaction: second, job }))).toThrow()
        expect(await does.transaction(second.hash)).toBeUndefined()
      })

      test('a job is not launched when its order cannot make the change', async () => {
        const transaction = transactionRow(freshNetwork(), { kind: 'swap', product: 'desk' })
        const job = jobRow(transaction)
        const rider = {
          kind: 'order',
          ride: { kind: 'swap', id: `ord_${'0'.repeat(32)}`, at },
        } as const
        const { settling } = own.ledger
        const ridden = { ...rider, confirmed: 'pay_none' }
        expect(await settling.launchJob({ transaction, job, rider: ridden })).toBe(
          'payment-not-confirmed',
        )
        expect(await settling.launchJob({ transaction, job, rider })).toBe('order-changed')
        expect(await own.ledger.jobs.find(job.id)).toBeUndefined()
        expect(await does.transaction(transaction.hash)).toBeUndefined()
      })

      test('giving up ends the job as replaced', async () => {
        const launch = await does.launchJob()
        const newer = await does.replaceJob(launch)
        const hashes = [launch.transaction.hash, newer.hash]
        const giving = { hashes, payments: [], job: launch.job.id, at: at + 2 }
        expect(await does.changedBy(() => own.ledger.settling.giveUp(giving))).toEqual([
          launch.job.id,
        ])
        expect(await own.ledger.jobs.find(launch.job.id)).toMatchObject({
          state: 'replaced',
          transactionHash: newer.hash,
          receipt: null,
          endedAt: at + 2,
        })
        expect(await does.changedBy(() => own.ledger.settling.giveUp(giving))).toEqual([])
      })

      test('after a reorganisation a job is open, and all its transactions are sent', async () => {
        const launch = await does.launchJob()
        const { job, transaction } = launch
        const newer = await does.replaceJob(launch)
        const { settling, jobs } = own.ledger
        const hashes = [transaction.hash, newer.hash]
        const included = { hashes, job: job.id, receipt: '{}' }
        await settling.record(inclusionOf({ transaction: newer }, included), [])
        const changed = await does.changedBy(async () =>
          expect(await settling.reopen(transaction.network, newer.hash)).toEqual({
            payments: [],
            job: job.id,
          }),
        )
        expect(changed).toEqual([job.id])
        expect(await jobs.find(job.id)).toEqual({ ...job, transactionHash: newer.hash })
        const sent = await settling.resendJob(job.id)
        expect(sent.map(({ hash, state }) => ({ hash, state }))).toEqual([
          { hash: transaction.hash, state: 'sent' },
          { hash: newer.hash, state: 'sent' },
        ])
      })

      test('another transaction at its nonce displaces a job, which may be included again', async () => {
        const launch = await does.launchJob()
        const { job, transaction } = launch
        const newer = await does.replaceJob(launch)
        const { settling } = own.ledger
        const hashes = [transaction.hash, newer.hash]
        const included = { hashes, job: job.id, receipt: '{}' }
        await settling.record(inclusionOf({ transaction: newer }, included), [])
        const stranger = { ...transaction, hash: hashOf(next()) }
        await settling.launch({ transaction: stranger, fresh: [], again: [] })
        const changed = await does.changedBy(() =>
          settling.record(inclusionOf({ transaction: stranger }), []),
        )
        expect(changed).toEqual([job.id])
        expect(await own.ledger.jobs.find(job.id)).toMatchObject({ state: 'broadcast' })
        expect(await does.transaction(newer.hash)).toEqual({
          state: 'sent',
          block: null,
          cost: null,
        })
        expect(await does.transaction(stranger.hash)).toMatchObject({ state: 'mined' })
      })
    })
  })
