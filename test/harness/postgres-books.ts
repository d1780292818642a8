import type { StoryReads } from '../../db/admin'
import { createAdmin } from '../../db/postgres/admin'
import { createCommits } from '../../db/postgres/commits'
import { installFunctions, searchFunctions } from '../../db/postgres/functions'
import { openLines } from '../../db/postgres/line-pool'
import { createReader } from '../../db/postgres/reader'
import { createSales } from '../../db/postgres/sales'
import { createOutbox, createWebhooks } from '../../db/postgres/webhooks'
import type { Rows } from './book-rows'
import { freshDatabase } from './postgres'

type Options = {
  /** Of a database that another gateway has opened. */
  url?: string
  isSender?: () => boolean
}

/** The books in a new database of PostgreSQL. `reads`: the other parts of a story. */
export async function openBooks(reads: StoryReads, options: Options = {}) {
  const url = options.url ?? (await freshDatabase())
  const lines = await openLines({
    servers: [{ connectionString: url }],
    name: 'books',
    session: () => [searchFunctions()],
    monotonic: () => performance.now(),
  })
  await lines.run('commit', installFunctions)
  const reader = createReader(lines)
  const outbox = createOutbox()
  const gateway = crypto.randomUUID()
  const { signal } = new AbortController()
  const changed = () => undefined
  const commits = createCommits({
    monotonic: () => performance.now(),
    lines,
    gateway,
    messages: outbox,
    changed,
    signal,
  })
  const parts = { commits, reader }
  return {
    ...{ url, reader, commits, outbox, lines },
    sales: createSales(parts),
    admin: createAdmin(parts, reads),
    webhooks: createWebhooks({ ...parts, outbox, isSender: options.isSender ?? (() => true) }),
    /** Writes rows as they are, table by table. */
    async insert(rows: Rows) {
      const tables = Map.groupBy(rows, ([table]) => table)
      await lines.run('commit', async (query) => {
        for (const [table, each] of tables) {
          const names = Object.keys(each[0]?.[1] ?? {}).map((name) => `"${name}"`)
          const input = JSON.stringify(
            each.map(([, row]) => row),
            (_, value) => (value instanceof Uint8Array ? `\\x${value.toHex()}` : value),
          )
          await query(
            `INSERT INTO ${table} (${names}) SELECT ${names}
             FROM jsonb_populate_recordset(NULL::${table}, $1)`,
            [input],
          )
        }
      })
    },
    close: () => lines.close(),
  }
}

export type Books = Awaited<ReturnType<typeof openBooks>>
