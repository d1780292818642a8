import { expect, test } from 'bun:test'
import { postgres } from '../../db/dialect'
import { createEntitlementReads } from '../../db/entitlements'
import { adminStatements } from '../../db/postgres/admin'
import { positional } from '../../db/postgres/rows'
import { spanSql } from '../../db/postgres/sales'
import { createRefundReads } from '../../db/refunds'
import { salesSql } from '../../db/sales'
import { createLedger } from '../../db/sqlite/ledger'
import { openInMemory } from '../../db/sqlite/open'
import { alertSql, isDue } from '../../db/webhooks'
import { begin, randomRows } from '../harness/book-rows'
import { hasPostgres } from '../harness/postgres'
import { openBooks } from '../harness/postgres-books'
import { createRandom } from '../soak/random'

/** Tables that grow with the payments, with the messages or with the grants. */
const growing =
  /Seq Scan on (payments|transactions|transaction_members|orders|jobs|job_transactions|authorizations|answers|webhooks|grants|grant_top_ups|entitlements|entitlement_uses|refunds)\b/

/** More rows than fit into a few pages, which the planner would rather read at once. */
const more = `INSERT INTO transactions (hash, network, relayer, nonce, kind, product, "to", raw,
    gas_limit, max_fee_wei, max_tip_wei, state, created_at, first_sent_at)
  SELECT '0x' || lpad(to_hex(n), 64, '0'), network, relayer, 1000000 + n, 'payment', product, "to",
    raw, '1', '1', '1', 'sent', 1, 1
  FROM generate_series(1, 3000) AS n, (SELECT * FROM transactions LIMIT 1) AS t`

const morePayments = `INSERT INTO payments SELECT made.* FROM payments AS p
  CROSS JOIN transactions AS t
  CROSS JOIN LATERAL jsonb_populate_record(p, jsonb_build_object('id', 'pay_' || substr(t.hash, 35),
    'nonce', t.hash, 'transaction_hash', t.hash, 'idempotency_key', NULL,
    'redeem_token_hash', NULL, 'redeem_until', NULL)) AS made
  WHERE p.id = (SELECT min(id) FROM payments) AND t.nonce > 1000000`

const moreMembers = `INSERT INTO transaction_members (transaction_hash, position, payment_id)
  SELECT hash, 0, 'pay_' || substr(hash, 35) FROM transactions WHERE nonce > 1000000`

test.skipIf(!hasPostgres)(
  'no statement of the books reads a table that grows, not even without statistics',
  async () => {
    const books = await openBooks(createLedger(openInMemory({ now: () => begin })))
    await books.insert(randomRows(createRandom('plans')))
    const { first, buyers } = salesSql(postgres)
    const statements = { ...adminStatements, span: spanSql(true), first, buyers }
    await books.lines.run('read', async (query) => {
      await query(more)
      await query(morePayments)
      await query(moreMembers)
      await query('SET plan_cache_mode = force_generic_plan')
      const planOf = async (name: string, [text, values]: readonly [string, unknown[]]) => {
        const nulls = values.length === 0 ? '' : `(${values.map(() => 'NULL')})`
        await query(`PREPARE ${name} AS ${text}`)
        const lines = await query<Record<string, string>>(`EXPLAIN EXECUTE ${name}${nulls}`)
        await query(`DEALLOCATE ${name}`)
        return lines.map((line) => line['QUERY PLAN'] ?? '').join('\n')
      }
      const texts: string[] = []
      const selects = {
        dialect: postgres,
        select: (text: string) => {
          texts.push(text)
          return async () => []
        },
      }
      createEntitlementReads(selects)
      createRefundReads(selects)
      const look = async () => {
        const plans: [string, string][] = [
          ['due', await planOf('due', positional(`SELECT * FROM webhooks WHERE ${isDue}`, {}))],
          ['alert', await planOf('alert', positional(alertSql, {}))],
        ]
        for (const [at, text] of texts.entries())
          plans.push([text, await planOf(`read_${at}`, positional(text, {}))])
        for (const [name, sql] of Object.entries(statements))
          plans.push([name, await planOf(`plan_${name}`, positional(sql, {}))])
        return plans
      }
      const fresh = await look()
      for (const [name, plan] of fresh)
        expect([name, growing.exec(plan)?.[0]]).toEqual([name, undefined])
      const planned = Object.fromEntries(fresh)
      expect(planned.rowsOfPayer).toContain('payments_money')
      expect(planned.unfinished).toContain('payments_unfinished')
      expect(planned.buyers).toContain('payments_money')
      expect(planned.window).toContain('payments_pkey')
    })
    books.close()
  },
)
