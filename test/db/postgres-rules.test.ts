import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import * as Authorization from '../../db/Authorization'
import { states } from '../../db/Order'
import { hasPostgres } from '../harness/postgres'
import { hash, impossible, type Row, rows } from '../harness/table-rows'
import {
  type Fault,
  insert,
  postgresTarget,
  sqliteTarget,
  type Target,
} from '../harness/two-databases'

if (!hasPostgres)
  process.stderr.write(
    'SKIPPED: the rules of PostgreSQL need it (apt-get install --no-install-recommends postgresql)\n',
  )

/** Both databases, each with the sample rows. */
const both: { sqlite: Target; postgres: Target }[] = []
async function open(): Promise<{ sqlite: Target; postgres: Target }> {
  const pair = { sqlite: sqliteTarget(), postgres: await postgresTarget() }
  both.push(pair)
  return pair
}

afterAll(async () => {
  for (const { sqlite, postgres } of both) await Promise.all([sqlite.close(), postgres.close()])
})

async function fill(targets: readonly Target[]): Promise<void> {
  for (const target of targets) {
    for (const table of Object.keys(rows)) {
      expect([table, await insert(target, table)]).toEqual([table, undefined])
    }
  }
}

describe.skipIf(!hasPostgres)('the rules of rows', () => {
  let sqlite: Target
  let postgres: Target
  beforeAll(async () => {
    ;({ sqlite, postgres } = await open())
    await fill([sqlite, postgres])
  })

  for (const [name, [table, ...changes]] of Object.entries(impossible)) {
    test(`error: both databases refuse rows by ${name}`, async () => {
      for (const change of changes) {
        const here = [name, JSON.stringify(change)]
        const old = await insert(sqlite, table, change)
        // SQLite names a CHECK of an added column by the start of its expression.
        const known = old && old.name in impossible ? old.name : name
        expect([...here, old?.kind, known]).toEqual([...here, 'check', name])
        const fault = await insert(postgres, table, change)
        // A flag and JSON are refused by their types already.
        if (fault?.kind !== 'value')
          expect([...here, fault]).toEqual([...here, { kind: 'check', name }])
      }
    })
  }

  const lower = (table: string, ...columns: string[]): Row =>
    Object.fromEntries(columns.map((name) => [name, String(rows[table]?.[name]).toLowerCase()]))
  const same: readonly (readonly [index: string, table: string, Row])[] = [
    ['payments_money', 'payments', { id: 'x', ...lower('payments', 'asset', 'payer') }],
    ['authorizations_money', 'authorizations', { id: 'x', ...lower('authorizations', 'asset') }],
    [
      'transactions_included',
      'transactions',
      { hash: hash('b'), ...lower('transactions', 'relayer') },
    ],
    ['grants_key', 'grants', lower('grants', 'address')],
    ['grant_top_ups_key', 'grant_top_ups', lower('grant_top_ups', 'address')],
    ['offers_key', 'offers', lower('offers', 'asset', 'pay_to')],
    ['assets_key', 'assets', lower('assets', 'address')],
    ['own_accounts_key', 'own_accounts', lower('own_accounts', 'address')],
  ]
  for (const [name, table, change] of same) {
    test(`error: a second row of ${table} in other letter case is refused by ${name}`, async () => {
      // The bar between payments and authorizations is not what refuses them.
      const free =
        table === 'payments' ? { transaction_hash: hash('d'), redeem_token_hash: 'y' } : {}
      expect((await insert(sqlite, table, { ...change, ...free }))?.kind).toBe('unique')
      expect(await insert(postgres, table, { ...change, ...free })).toEqual({
        kind: 'unique',
        name,
      })
    })
  }

  test('error: PostgreSQL alone refuses a second payment with the own key of the buyer', async () => {
    const other = { id: 'pay_3', nonce: hash('3'), log_index: 5, redeem_token_hash: 'z' }
    const expired = { state: 'expired', log_index: null, block_number: null, confirmed_at: null }
    const lowered = lower('payments', 'payer')
    expect(await insert(postgres, 'payments', { ...other, ...lowered })).toEqual({
      kind: 'unique',
      name: 'payments_key',
    })
    expect(await insert(postgres, 'payments', { ...other, ...expired })).toBeUndefined()
  })

  test('error: both refuse a top-up without a grant, and rows without what they name', async () => {
    const alone = { address: rows.payments?.payee ?? '' }
    const cases: readonly (readonly [string, Row])[] = [
      ['grant_top_ups', alone],
      ['answers', { payment_id: 'none' }],
      ['orders', { id: `ord_${'1'.repeat(32)}`, payment_id: 'none' }],
      ['transaction_members', { payment_id: 'none', position: 5 }],
      ['job_transactions', { transaction_hash: hash('f') }],
      ['refunds', { payment_id: 'none' }],
      ['entitlements', { id: 'again|none', payment_id: 'none' }],
    ]
    for (const [table, change] of cases) {
      const kinds = [await insert(sqlite, table, change), await insert(postgres, table, change)]
      expect([table, ...kinds.map((fault) => fault?.kind)]).toEqual([
        table,
        'foreign key',
        'foreign key',
      ])
    }
  })
})

describe.skipIf(!hasPostgres)('the triggers', () => {
  let sqlite: Target
  let postgres: Target
  beforeAll(async () => {
    ;({ sqlite, postgres } = await open())
    await fill([sqlite, postgres])
    await Promise.all([sqlite.ignoreChecks(), postgres.ignoreChecks()])
  })

  /** Both databases answer the same; returns the answer. */
  const alike = async (statement: string, values: Row[string][]): Promise<Fault | undefined> => {
    const old = await sqlite.run(statement, values)
    const fault = await postgres.run(statement, values)
    expect([statement, values, fault]).toEqual([statement, values, old])
    return fault
  }
  /** Puts a row into a state past the triggers, as a new row. */
  const place = async (table: string, id: string, change: Row) => {
    for (const target of [sqlite, postgres]) {
      const nonce = table === 'authorizations' ? { nonce: `nonce ${id}` } : {}
      const payment = table === 'orders' ? { payment_id: id } : {}
      if (table === 'orders')
        await insert(target, 'payments', {
          id,
          nonce: `nonce ${id}`,
          redeem_token_hash: id,
          transaction_hash: id,
          idempotency_key: id,
        })
      expect(await insert(target, table, { ...change, ...nonce, ...payment, id })).toBeUndefined()
    }
  }

  for (const [table, all] of [
    ['orders', states],
    ['authorizations', Object.keys(Authorization.transitions)],
  ] as const) {
    test(`rows of ${table} have the same transitions in both databases`, async () => {
      let refused = 0
      for (const from of all) {
        for (const to of all) {
          const id = `${table} ${from} ${to}`
          await place(table, id, { state: from })
          if (await alike(`UPDATE ${table} SET state = ? WHERE id = ?`, [to, id])) refused++
        }
      }
      // Each state may be written again, and few may follow it.
      expect(refused).toBeGreaterThan(all.length)
    })

    test(`the same columns of ${table} change in both databases`, async () => {
      const id = `${table} columns`
      const texts = { swap_tx: 's', refund_tx: 't', refund_reason: 'r' }
      const given = table === 'orders' ? texts : {}
      await place(table, id, given)
      const row = { ...rows[table], ...given }
      const refused: string[] = []
      for (const [name, value] of Object.entries<Row[string]>(row)) {
        if (name === 'id' || name === 'state') continue
        const other = value === 1 && /^(bound|is_delivered)$/.test(name) ? 0 : otherThan(value)
        const fault = await alike(`UPDATE ${table} SET "${name}" = ? WHERE id = ?`, [other, id])
        if (fault) refused.push(name)
      }
      expect(refused).toContain('payer')
      expect(refused).not.toContain('updated_at')
    })

    test(`error: no database deletes a row of ${table}`, async () => {
      const fault = await alike(`DELETE FROM ${table}`, [])
      expect(fault?.name).toContain('never deleted')
    })
  }

  test('error: no database changes what a refund was agreed on, or forgets an attempt', async () => {
    const refused: string[] = []
    for (const [name, value] of Object.entries<Row[string]>(rows.refunds ?? {}))
      if (await alike(`UPDATE refunds SET "${name}" = ?`, [otherThan(value)])) refused.push(name)
    expect(refused).toEqual(['payment_id', 'account', 'amount_atomic', 'reason', 'created_at'])
    expect((await alike('UPDATE refunds SET attempts = 0', []))?.kind).toBe('trigger')
    expect((await alike('DELETE FROM refunds', []))?.name).toBe('a refund is never deleted')
  })

  test('error: no database changes what makes a channel, or lowers what it was charged', async () => {
    const charge = (atomic: string) => alike('UPDATE channels SET charged_atomic = ?', [atomic])
    expect(await charge('100')).toBeUndefined()
    for (const less of ['99', '099', '9'])
      expect((await charge(less))?.name).toBe('what a channel was charged does not fall')
    const refused: string[] = []
    for (const [name, value] of Object.entries<Row[string]>(rows.channels ?? {}))
      if (value !== null && (await alike(`UPDATE channels SET "${name}" = ?`, [otherThan(value)])))
        refused.push(name)
    expect(refused).toEqual([
      ...['id', 'network', 'payer', 'payer_authorizer', 'receiver', 'receiver_authorizer'],
      ...['token', 'withdraw_delay', 'salt', 'created_at'],
    ])
    expect((await alike('DELETE FROM channels', []))?.name).toBe('a channel is never deleted')
  })

  test('error: no database forgets a swap, or refunds one that succeeded', async () => {
    await place('orders', 'swapped', { state: 'held', swap_tx: hash('5') })
    const swapped = ['swapped']
    expect((await alike('UPDATE orders SET swap_tx = NULL WHERE id = ?', swapped))?.kind).toBe(
      'trigger',
    )
    const refund = "UPDATE orders SET state = 'refunding' WHERE id = ?"
    expect((await alike(refund, swapped))?.name).toContain('not refunded')
    await alike("UPDATE orders SET refund_reason = 'r' WHERE id = ?", swapped)
    expect(await alike(refund, swapped)).toBeUndefined()
  })

  test('error: money is authorized or paid once in both databases', async () => {
    const put = async (table: string, change: Row) => {
      const old = await insert(sqlite, table, change)
      const fault = await insert(postgres, table, change)
      expect([table, change, fault]).toEqual([table, change, old])
      return fault?.name
    }
    const payer = String(rows.payments?.payer).toLowerCase()
    const paid = { id: 'a1', nonce: hash('1'), payer }
    expect(await put('authorizations', paid)).toBe('money-paid')
    const terms = { id: 'a2', nonce: hash('7'), state: 'metered', charge_atomic: '700' }
    expect(await put('authorizations', terms)).toBeUndefined()
    const row = {
      nonce: hash('7'),
      payer,
      transaction_hash: hash('7'),
      redeem_token_hash: 'a2',
      idempotency_key: null,
    }
    expect(await put('payments', { ...row, id: 'other', amount_atomic: '700' })).toBe(
      'money-authorized',
    )
    // Its own payment waits until it is sent, and has the amount that was charged.
    expect(await put('payments', { ...row, id: 'a2', amount_atomic: '700' })).toBe(
      'money-authorized',
    )
    await alike("UPDATE authorizations SET state = 'sent' WHERE id = ?", ['a2'])
    expect(await put('payments', { ...row, id: 'a2', amount_atomic: '701' })).toBe(
      'money-authorized',
    )
    expect(await put('payments', { ...row, id: 'a2', amount_atomic: '700' })).toBeUndefined()
  })
})

function otherThan(value: Row[string]): Row[string] {
  return typeof value === 'number' ? value + 1 : `${value}x`
}
