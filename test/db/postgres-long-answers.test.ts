import { describe, expect, test } from 'bun:test'
import type { Query } from '../../db/postgres/Line'
import type { Lines } from '../../db/postgres/line-pool'
import { answerMaxBytes } from '../../src/paywall/answer/store'
import { startGateway } from '../harness/gateway-pair'
import { gatewayDatabase, hasPostgres } from '../harness/postgres'

/** Bytes of the long texts of each statement, and of those that ran at once. */
type Seen = { each: number[]; running: number; most: number }

/** Notes how much of long answers each statement has. */
function noting(seen: Seen): (lines: Lines) => Lines {
  const noted =
    (query: Query): Query =>
    async (text, values = [], options) => {
      const changes = text.includes('commit_changes') ? String(values[2]).length : 0
      const long = changes > answerMaxBytes / 2 ? changes : 0
      seen.each.push(long)
      seen.running += long
      seen.most = Math.max(seen.most, seen.running)
      try {
        return await query(text, values, options)
      } finally {
        seen.running -= long
      }
    }
  return (lines) => ({
    ...lines,
    run: (kind, work) => lines.run(kind, (query) => work(noted(query))),
  })
}

describe.skipIf(!hasPostgres)('answers that are kept, as long as they may be', () => {
  test('attack: of many long answers at once each commit has one, and other changes are committed beside them', async () => {
    const seen: Seen = { each: [], running: 0, most: 0 }
    const gateway = await startGateway(await gatewayDatabase(), {
      now: Date.now,
      lines: noting(seen),
      times: { deadMs: 60_000, steadyMs: 60_000, gapMs: 30_000, freshMs: 45_000 },
    })
    try {
      const { answers, admin } = gateway.ledger
      await gateway.sql('ALTER TABLE answers DROP CONSTRAINT answers_payment_id_payments_id_fk')
      const body = crypto.getRandomValues(new Uint8Array(answerMaxBytes))
      const answer = { status: 200, headers: '[]', body, createdAt: 1, expiresAt: 2 }
      const ids = Array.from({ length: 8 }, (_, index) => `pay_${index}`)
      const storing = ids.map((id) => answers.store(id, answer))
      const pause = { kind: 'merchant' as const, name: 'weather', at: 1 }
      expect(await admin.setPause(pause, true)).toEqual([pause])
      await Promise.all(storing)
      for (const id of ids) expect((await answers.find(id))?.body).toEqual(body)
      // A byte is written as four thirds of a letter.
      const lettersMax = 1.5 * answerMaxBytes
      expect(seen.each.filter((long) => long > 0)).toHaveLength(ids.length)
      expect(seen.most).toBeLessThan(lettersMax)
    } finally {
      await gateway.leave()
    }
  })
})
