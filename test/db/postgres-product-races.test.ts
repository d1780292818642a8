import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { SQLiteTable } from 'drizzle-orm/sqlite-core'
import type { Address } from 'viem'
import type { NewGrant } from '../../db/GrantLedger'
import { PostgresError } from '../../db/postgres/errors'
import { searchFunctions } from '../../db/postgres/functions'
import { connect, type Line } from '../../db/postgres/Line'
import { toJson } from '../../db/postgres/rows'
import { productRows } from '../../db/postgres/settling'
import { answers, authorizations, entitlements, grants, orders, payments } from '../../db/schema'
import { account } from '../../src/demo/accounts'
import { orderOf, paymentRow } from '../harness/desk-orders'
import { freshDatabase, hasPostgres } from '../harness/postgres'
import { newAddress, type Products, postgresProducts, prepare } from '../harness/products'
import { until } from '../harness/settlement'
import { createRandom } from '../soak/random'

/** Limits that several gateways share are exact, whatever runs at the same time. */

const random = createRandom('races')
const hash = (digit: string): `0x${string}` => `0x${digit.repeat(64)}`
const today = 20_000 * 86_400_000
let serial = 0

type Statement = { text: string; values: readonly unknown[] }

const call = (name: string, input: object): Statement => ({
  text: `SELECT ${name}($1::jsonb)`,
  values: [JSON.stringify(input)],
})

function insert<T extends SQLiteTable>(name: string, table: T, row: T['$inferInsert']): Statement {
  const text = `INSERT INTO ${name} SELECT * FROM jsonb_populate_record(NULL::${name}, $1::jsonb)`
  return { text, values: [JSON.stringify(toJson(table, row))] }
}

describe.skipIf(!hasPostgres)('two connections', () => {
  let url: string
  let gateways: readonly [Products, Products]
  let lines: readonly [Line, Line, Line]

  beforeAll(async () => {
    url = await freshDatabase()
    await prepare(url)
    gateways = [await postgresProducts(url), await postgresProducts(url)]
    const open = () =>
      connect({
        client: { connectionString: url },
        session: [searchFunctions()],
        onEnd: () => undefined,
        answerMs: 60_000,
      })
    lines = [await open(), await open(), await open()]
  })
  afterAll(() => {
    for (const each of [...(gateways ?? []), ...(lines ?? [])]) each.close()
  })

  /** Runs a statement while another one is not committed; how it ends afterwards, and if it waited. */
  async function race(first: Statement, second: Statement, end = 'COMMIT') {
    const [one, other, watcher] = lines
    const [row] = await other.run((query) =>
      query<{ pid: number }>('SELECT pg_backend_pid() AS pid'),
    )
    const isWaiting = async () => {
      const text = "SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'"
      return (await watcher.run((query) => query(text, [row?.pid]))).length > 0
    }
    let hasEnded = false
    let waited = false
    const ended = await one.run(async (query) => {
      await query('BEGIN')
      await query(first.text, first.values)
      const run = other
        .run((query) => query(second.text, second.values))
        .then(() => 'done')
        .catch((error: unknown) => {
          if (error instanceof PostgresError) return error.message
          throw error
        })
        .finally(() => {
          hasEnded = true
        })
      await until(async () => hasEnded || (await isWaiting()))
      waited = !hasEnded
      await query(end)
      return run
    })
    return { waited, ended }
  }

  /** A payment that is stored, and an order with a quota for it. */
  async function termsOf(payer: Address, max: number) {
    const order = { ...orderOf(random), payer, paymentId: `p${++serial}`, settlementTx: hash('a') }
    await gateways[0].insert(payments, paymentRow(order))
    const rows = { order, quota: { payer, since: 'ord_', max } }
    return { rows, payment: { id: order.paymentId, hash: hash('b') } }
  }

  const orderCall = ({ rows, payment }: Awaited<ReturnType<typeof termsOf>>) =>
    call('test_order', { ...payment, rows: productRows.order(rows) })

  test('attack: a payer with orders in two commits at once has no more than the quota', async () => {
    const payer = newAddress()
    const [one, two] = [await termsOf(payer, 1), await termsOf(payer.toLowerCase() as Address, 1)]
    expect(await race(orderCall(one), orderCall(two))).toEqual({
      waited: true,
      ended: 'order-quota',
    })
    const [three, four] = [await termsOf(payer, 2), await termsOf(payer, 2)]
    expect(await race(orderCall(three), orderCall(four), 'ROLLBACK')).toEqual({
      waited: true,
      ended: 'done',
    })
    const other = await termsOf(newAddress(), 1)
    const another = await termsOf(newAddress(), 1)
    expect(await race(orderCall(other), orderCall(another))).toEqual({
      waited: false,
      ended: 'done',
    })
  })

  test('attack: of many orders at two gateways as many are written as the quota has', async () => {
    const payer = newAddress()
    const terms = await Promise.all(Array.from({ length: 24 }, () => termsOf(payer, 3)))
    const ends = await Promise.all(
      terms.map(({ rows, payment }, index) => gateways[index % 2 ? 1 : 0].order(rows, payment)),
    )
    expect(ends.filter((each) => each === undefined)).toHaveLength(3)
    expect(ends.filter((each) => each === 'order-quota')).toHaveLength(21)
    expect(await gateways[0].orders.countUnderWay(payer)).toBe(3)
  })

  const grantTo = (of: NewGrant['row']['network'], max: number): NewGrant => ({
    isTopUp: false,
    row: {
      ...{ network: of, address: newAddress(), token: account(3).address, kind: 'grant' },
      ...{ amountWei: 10n, feeWei: 5n, approveHash: null, createdAt: today + 5 },
    },
    budget: { from: today, grants: max, wei: 1_000n },
    isSigned: true,
  })
  const grantCall = (grant: NewGrant) =>
    call('test_ride', { rider: productRows.rider({ kind: 'grant', grant }), hash: hash('d') })

  test('attack: two grants at once do not pass the budget of a day, not even its first ones', async () => {
    const of = 'eip155:1'
    const first = await race(grantCall(grantTo(of, 1)), grantCall(grantTo(of, 1)))
    expect(first).toEqual({ waited: true, ended: 'grants-spent' })
    const undone = await race(grantCall(grantTo(of, 2)), grantCall(grantTo(of, 2)), 'ROLLBACK')
    expect(undone).toEqual({ waited: true, ended: 'done' })
    const last = await race(grantCall(grantTo(of, 3)), grantCall(grantTo(of, 3)))
    expect(last).toEqual({ waited: true, ended: 'grants-spent' })
    expect(await gateways[1].grants.tallySince(of, today)).toEqual({ grants: 3, wei: 45n })
    const others = await race(grantCall(grantTo('eip155:2', 1)), grantCall(grantTo('eip155:3', 1)))
    expect(others).toEqual({ waited: false, ended: 'done' })
  })

  test('the sums of a day are those of its rows after grants and gas costs of two gateways', async () => {
    const of = 'eip155:4'
    // Rows of a database that was moved have no sums yet.
    const moved = { ...grantTo(of, 0).row, kind: 'grant', approveHash: null } as const
    const before = { ...moved, token: account(3).address, transactionHash: hash('d') }
    await gateways[0].insert(grants, before)
    expect(await gateways[0].grants.tallySince(of, today)).toEqual({ grants: 1, wei: 15n })
    const all = Array.from({ length: 24 }, () => grantTo(of, 9))
    const ends = await Promise.all(
      all.map(async (grant, index) => {
        const gateway = gateways[index % 2 ? 1 : 0]
        const refused = await gateway.ride({ kind: 'grant', grant }, hash('d'))
        const { address } = grant.row
        const fee = { network: of, address, isTopUp: false } as const
        const both = gateways.map((each) => each.grants.setFee(fee, BigInt(index)))
        await Promise.all(both)
        await gateways[0].grants.setFee({ ...fee, address: before.address }, BigInt(index))
        return refused
      }),
    )
    expect(ends.filter((each) => each === undefined)).toHaveLength(8)
    expect(ends.filter((each) => each === 'grants-spent')).toHaveLength(16)
    const rows = (await gateways[0].rows(grants)).filter(({ network }) => network === of)
    const wei = rows.reduce((sum, { amountWei, feeWei }) => sum + amountWei + feeWei, 0n)
    for (const gateway of gateways)
      expect(await gateway.grants.tallySince(of, today)).toEqual({ grants: 9, wei })
  })

  test('attack: money is not authorized and paid by two commits at once', async () => {
    const payment = () => {
      const order = { ...orderOf(random), payer: newAddress(), paymentId: `p${++serial}` }
      return paymentRow({ ...order, settlementTx: hash('a') })
    }
    const authorization = (row: ReturnType<typeof payment>) => ({
      ...row,
      ...({ id: `a${++serial}`, product: 'gateway', state: 'authorized' } as const),
      ...{ ceilingAtomic: 5n, facilitator: account(0).address },
    })
    const [one, two] = [payment(), payment()]
    const pay = (row: typeof one) => insert('payments', payments, row)
    const authorize = (row: typeof one) =>
      call('insert_authorization', {
        row: toJson(authorizations, authorization(row)),
        limits: null,
      })
    expect(await race(pay(one), authorize(one))).toEqual({ waited: true, ended: 'money-paid' })
    expect(await race(authorize(two), pay(two))).toEqual({
      waited: true,
      ended: 'money-authorized',
    })
  })

  const settled = async () => {
    const ids = { paymentId: `p${++serial}`, settlementTx: hash('a') }
    const order = { ...orderOf(random), ...ids, state: 'settled', settledAt: 2 } as const
    const paid = { state: 'confirmed', logIndex: serial, blockNumber: 5n, confirmedAt: 3 } as const
    await gateways[0].insert(payments, { ...paymentRow(order), ...paid })
    await gateways[0].insert(orders, order)
    return order
  }

  test('a swap waits for a reorganisation of its payment, and is refused after it', async () => {
    const { id, paymentId } = await settled()
    const ride = { kind: 'swap', id, at: 9 } as const
    const rider = productRows.rider({ kind: 'order', ride, confirmed: paymentId })
    const swap = call('test_ride', { rider, hash: hash('d') })
    const reopen = {
      text: `UPDATE payments SET state = 'broadcast', log_index = NULL, block_number = NULL,
        confirmed_at = NULL WHERE id = $1`,
      values: [paymentId],
    }
    expect(await race(reopen, swap, 'ROLLBACK')).toEqual({ waited: true, ended: 'done' })
    const other = await settled()
    const next = { ...(rider as object), id: other.id, confirmed: other.paymentId }
    const ended = await race(
      { ...reopen, values: [other.paymentId] },
      call('test_ride', { rider: next, hash: hash('d') }),
    )
    expect(ended).toEqual({ waited: true, ended: 'payment-not-confirmed' })
    expect((await gateways[1].orders.find(other.id))?.state).toBe('settled')
  })

  /** A confirmed payment of the gateway, with a pass. */
  const passOf = async () => {
    const order = { ...orderOf(random), paymentId: `p${++serial}`, settlementTx: hash('a') }
    const paid = { state: 'confirmed', logIndex: serial, blockNumber: 5n, confirmedAt: 3 } as const
    const row = { ...paymentRow(order), ...paid, product: 'gateway' } as const
    await gateways[0].insert(payments, row)
    const { id: paymentId, network, payer: wallet } = row
    await gateways[0].insert(entitlements, {
      ...{ id: `pass|${paymentId}`, kind: 'pass', merchant: 'm', route: '/r', wallet, paymentId },
      ...{ network, periodMs: 9, uses: 0, usesMax: 2, attempts: 0, createdAt: 1 },
    })
    const use = { id: `use${serial}`, entitlement: `pass|${paymentId}`, trial: null, day: null }
    const [wanted, terms] = [
      { payment: paymentId, amount: '1' },
      { from: 0, to: 9, per_day: '9' },
    ]
    const refund = { payment_id: paymentId, account: wallet, reason: 'undelivered', attempts: 0 }
    return {
      paymentId,
      use: call('use_entitlement', { ...use, attempts: 6, at: 4, by: null }),
      refund: call('request_refund', { ...wanted, ...terms, row: { ...refund, created_at: 1 } }),
      begin: call('begin_delivery', {
        by: crypto.randomUUID(),
        items: [{ id: paymentId, attempts: null }],
      }),
      reopen: {
        text: `UPDATE payments SET state = 'broadcast', log_index = NULL, block_number = NULL,
          confirmed_at = NULL WHERE id = $1`,
        values: [paymentId],
      },
      uses: async () =>
        (await gateways[0].rows(entitlements)).find((each) => each.paymentId === paymentId)?.uses,
      delivery: async () =>
        (await gateways[0].rows(payments)).find(({ id }) => id === paymentId)?.delivery,
    }
  }

  test('attack: a use waits for a reorganisation and a refund of its payment, and finds them', async () => {
    for (const first of ['reopen', 'refund'] as const) {
      const [one, other] = [await passOf(), await passOf()]
      const waited = { waited: true, ended: 'done' }
      expect(await race(one[first], one.use)).toEqual(waited)
      expect(await one.uses()).toBe(0)
      expect(await race(other[first], other.use, 'ROLLBACK')).toEqual(waited)
      expect(await other.uses()).toBe(1)
    }
  })

  test('attack: a delivery waits for a refund of its payment, and does not begin after it', async () => {
    const [one, other] = [await passOf(), await passOf()]
    const waited = { waited: true, ended: 'done' }
    expect(await race(one.refund, one.begin)).toEqual(waited)
    expect(await one.delivery()).toBe('none')
    expect(await race(other.refund, other.begin, 'ROLLBACK')).toEqual(waited)
    expect(await other.delivery()).toBe('delivering')
  })

  test('of two equal moves at two gateways one is made', async () => {
    for (const kind of ['unsettle', 'swap'] as const) {
      const { id } = await settled()
      const move = { id, at: 9, kind, hash: hash('d') } as const
      const ends = await Promise.all(gateways.map((each) => each.orders.move(move)))
      expect(ends.filter((each) => each !== undefined)).toHaveLength(1)
    }
  })

  test('two gateways sweep the same answers, and all of them are gone', async () => {
    await Promise.all(
      Array.from({ length: 20 }, async () => {
        const { paymentId } = await settled()
        const row = { paymentId, status: 200, headers: '[]', body: Buffer.from('x') }
        await gateways[0].insert(answers, { ...row, createdAt: 1, expiresAt: 2 })
      }),
    )
    await Promise.all(gateways.map((each) => each.answers.sweep(2)))
    await Promise.all(gateways.map((each) => each.answers.sweep(2)))
    expect(await gateways[0].rows(answers)).toEqual([])
  })
})
