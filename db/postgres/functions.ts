import * as Crypto from '../../src/protocol/Crypto'
import answers from './functions/answers.sql' with { type: 'text' }
import authorizations from './functions/authorizations.sql' with { type: 'text' }
import books from './functions/books.sql' with { type: 'text' }
import channels from './functions/channels.sql' with { type: 'text' }
import commit from './functions/commit.sql' with { type: 'text' }
import deliveries from './functions/deliveries.sql' with { type: 'text' }
import entitlements from './functions/entitlements.sql' with { type: 'text' }
import failures from './functions/failures.sql' with { type: 'text' }
import grants from './functions/grants.sql' with { type: 'text' }
import launch from './functions/launch.sql' with { type: 'text' }
import offers from './functions/offers.sql' with { type: 'text' }
import orders from './functions/orders.sql' with { type: 'text' }
import record from './functions/record.sql' with { type: 'text' }
import refunds from './functions/refunds.sql' with { type: 'text' }
import settling from './functions/settling.sql' with { type: 'text' }
import webhooks from './functions/webhooks.sql' with { type: 'text' }
import type { Query } from './Line'

/** The functions of this program, in the order in which they are created. */
const sources: readonly string[] = [
  commit,
  settling,
  launch,
  record,
  deliveries,
  orders,
  grants,
  authorizations,
  entitlements,
  channels,
  refunds,
  answers,
  offers,
  webhooks,
  books,
  failures,
]

/** Name of the schema of these functions: programs with other functions have other schemas. */
export const functionSchema = `turnpike_${Crypto.sha256(sources.join('\n')).slice(0, 12)}`

/** Serialises the starts of gateways. */
const installing = 7_408_121

/** Creates the functions unless a start of the same program has. */
export async function installFunctions(query: Query): Promise<void> {
  await query('BEGIN')
  try {
    await query('SELECT pg_advisory_xact_lock($1)', [installing])
    const [known] = await query('SELECT 1 FROM pg_namespace WHERE nspname = $1', [functionSchema])
    if (known === undefined) {
      await query(`CREATE SCHEMA ${functionSchema}`)
      await query(searchFunctions(true))
      for (const source of sources) await query(source)
    }
    await query('COMMIT')
  } catch (error) {
    await query('ROLLBACK').catch(() => undefined)
    throw error
  }
}

/** The statement that lets a session, or a transaction, find the functions of this program first. */
export function searchFunctions(isLocal = false): string {
  return `SELECT set_config('search_path', '${functionSchema}, ' || current_setting('search_path'), ${isLocal})`
}
