import { describe, expect, test } from 'bun:test'
import { Client } from 'pg'
import { hasPostgres } from '../harness/postgres'
import { until } from '../harness/settlement'
import { actionsOf } from '../harness/settling-actions'
import { openPostgres } from '../harness/settling-ledgers'

/** What a repeated commit answers, and what other gateways are told. */

describe.skipIf(!hasPostgres)('a commit to PostgreSQL', () => {
  test('a record that is sent again answers the row of its payment, and counts its gas once', async () => {
    const own = await openPostgres()
    try {
      const { transaction, ids } = await actionsOf(own).launch()
      const { hash, network, relayer, nonce, product } = transaction
      const input = {
        fence: null,
        by: null,
        included: { hash, network, relayer, nonce, product },
        success: true,
        block_number: 200,
        spent_wei: '11',
        receipt: '',
        hashes: `{${hash}}`,
        job: null,
        at: 5,
        day: '2026-01-01',
        is_costly: false,
        first: ids[0] ?? null,
        all: `{${ids}}`,
        members: ids.map((id, index) => ({ id, logs: [index], starts: true })),
      }
      const id = crypto.randomUUID()
      const changes = JSON.stringify([
        { call: 'record', input },
        { call: 'no_such_function', input },
      ])
      const commit = async () =>
        (await own.run(`SELECT commit_changes('${id}', '${id}', '${changes}') AS answer`))[0]
          ?.answer
      const first = await commit()
      expect(first).toMatchObject({
        answers: [
          {
            value: {
              ...{ paid: ids, wei: '11' },
              confirmed: ids.map((id) => ({ id, state: 'confirmed' })),
            },
            payments: ids,
          },
          { error: { code: '42883' } },
        ],
      })
      expect(await commit()).toEqual(first)
      const [kept] = await own.run('SELECT result::text AS text FROM commits ORDER BY at DESC')
      expect(String(kept?.text)).not.toContain('signature')
    } finally {
      await own.close()
    }
  })

  test('other gateways are notified of the payments of a commit, while there are any', async () => {
    const own = await openPostgres()
    const listener = new Client({ connectionString: own.url })
    const told: string[][] = []
    try {
      await listener.connect()
      listener.on('notification', ({ payload }) => told.push(JSON.parse(payload ?? '').payments))
      await listener.query('LISTEN turnpike')
      const does = actionsOf(own)
      await does.confirm()
      await own.run(`INSERT INTO gateways (id, host, version, config_hash, fingerprints, seen_at)
        VALUES (gen_random_uuid(), 'h', 'v', 'c', '{}', clock_timestamp())`)
      const second = await does.confirm(3)
      await until(() => told.flat().length >= 3)
      expect(told.flat().toSorted()).toEqual([...second.ids].toSorted())
    } finally {
      await listener.end()
      await own.close()
    }
  })
})
