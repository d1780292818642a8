import { searchFunctions } from './functions'
import type { Kind } from './lines'

/**
 * A commit touches a few rows by their keys. While a table is small the planner would rather read it
 * whole, and such a plan stays when the table has grown.
 */
const pointed = [
  'SET enable_seqscan = off',
  'SET enable_hashjoin = off',
  'SET enable_mergejoin = off',
  // Else each call plans anew the statements whose plan might depend on the values.
  'SET plan_cache_mode = force_generic_plan',
]

/**
 * Statements that prepare a session: limits, so that no statement or lock of a process that is gone
 * stays, and what an acknowledged commit means.
 */
export function sessionOf(kind: Kind, statementMs = 5_000): readonly string[] {
  return [
    `SET statement_timeout = ${statementMs}`,
    'SET lock_timeout = 2000',
    'SET idle_in_transaction_session_timeout = 5000',
    // Compiling a plan takes longer than any of these statements.
    'SET jit = off',
    'SET default_transaction_isolation = "read committed"',
    `SET synchronous_commit = ${kind === 'soon' ? 'off' : 'on'}`,
    ...(kind === 'commit' || kind === 'soon' ? pointed : []),
    searchFunctions(),
  ]
}
