import { BesideError } from '../fault'
import type { Overview } from '../LaneLedger'
import type { Ledger } from '../Ledger'
import type { SalesReads } from '../sales'
import { functionSchema } from './functions'
import { readOverview } from './gateways'
import { createLedger } from './ledger'
import { type Lines, openLines, sessionOf } from './line-pool'
import { misfitOf } from './migrate'
import { DatabaseStartError, reach, startErrorOf } from './reach'
import * as Url from './Url'

const clocks = { now: Date.now, monotonic: () => performance.now() }

/** One command needs one connection of each kind. */
const sizes = { commit: 1, soon: 1, read: 1, beat: 0 }

/**
 * The ledger of a database whose service may be running, for commands of the operator. Write only
 * what that service expects others to write. Throws `BesideError` when it cannot be used. `first`: a
 * statement for the connection of reads.
 */
export async function openLedgerBeside(
  target: Url.Target,
  first?: string,
): Promise<{ ledger: Ledger; close(): Promise<void> }> {
  const lines = await openBeside(target)
  if (first !== undefined) await lines.run('read', (query) => query(first))
  const { ledger, close } = await createLedger({ lines, ...clocks })
  return {
    ledger,
    async close() {
      await close()
      lines.close()
    },
  }
}

/** The figures of sales of such a database. The server refuses writes of the connection. */
export async function openSalesBeside(
  target: Url.Target,
): Promise<{ sales: SalesReads; close(): Promise<void> }> {
  const readOnly = 'SET default_transaction_read_only = on'
  const { ledger, close } = await openLedgerBeside(target, readOnly)
  return { sales: ledger.sales, close }
}

/** The gateways of such a database. Nothing is written. */
export async function readGateways(target: Url.Target): Promise<Overview> {
  const lines = await openBeside(target)
  try {
    return await lines.run('read', readOverview)
  } finally {
    lines.close()
  }
}

async function openBeside(target: Url.Target): Promise<Lines> {
  const name = Url.describe(target)
  try {
    const { line, servers } = await reach(target)
    try {
      await line.run(async (query) => {
        const misfit = await misfitOf(query, { file: `the database ${name}` })
        if (misfit !== undefined) throw new BesideError(misfit)
        const functions = await query('SELECT 1 FROM pg_namespace WHERE nspname = $1', [
          functionSchema,
        ])
        if (functions.length === 0)
          throw new BesideError(
            `no turnpike of this version has used the database ${name}: use the version that serves it, ` +
              'or start serve once',
          )
      })
    } finally {
      line.close()
    }
    return await openLines({
      servers: servers.map(({ client }) => client),
      name,
      session: sessionOf,
      monotonic: clocks.monotonic,
      sizes,
    })
  } catch (error) {
    const cause = startErrorOf(error, target)
    if (cause instanceof DatabaseStartError || cause instanceof Url.UrlError)
      throw new BesideError(cause.message)
    throw cause
  }
}
