import { postgres as dialect } from '../dialect'
import type { Selects } from '../select'
import type { Query } from './Line'
import type { Lines } from './line-pool'
import { positional } from './named'

/** Reads outside of commits. Each statement sees what was committed before it began. */
export type Reader = {
  /** `text` is prepared once for each connection, so pass a constant. */
  all<Row>(text: string, values?: readonly unknown[]): Promise<readonly Row[]>
  /** The first row. */
  one<Row>(text: string, values?: readonly unknown[]): Promise<Row | undefined>
  /** Several statements of one state of the database. */
  snapshot<T>(read: (reader: Reader) => Promise<T>): Promise<T>
}

export function createReader(lines: Lines): Reader {
  return readerOf((work) => lines.run('read', work))
}

type Run = <T>(work: (query: Query) => Promise<T>) => Promise<T>

function readerOf(run: Run): Reader {
  const all = <Row>(text: string, values: readonly unknown[] = []) =>
    run((query) => query<Row>(text, values, { name: nameOf(text) }))
  return {
    all,
    one: async <Row>(text: string, values?: readonly unknown[]) =>
      (await all<Row>(text, values))[0],
    snapshot: (read) =>
      run(async (query) => {
        await query('BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY')
        try {
          return await read(readerOf((work) => work(query)))
        } finally {
          await query('COMMIT')
        }
      }),
  }
}

/** The reads that both databases have. */
export function selectsOf({ all }: Pick<Reader, 'all'>): Selects {
  return {
    dialect,
    select:
      <Row>(text: string) =>
      (values = {}) =>
        all<Row>(...positional(text, values)),
  }
}

const names = new Map<string, string>()

/** The name under which a connection keeps a statement. */
export function nameOf(text: string): string {
  const known = names.get(text)
  if (known !== undefined) return known
  const name = `text_${names.size}`
  names.set(text, name)
  return name
}
