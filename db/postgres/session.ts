import { searchFunctions } from './functions'
import type { Kind } from './line-pool'

/**
 * A commit finds a few rows by their keys. The planner prefers to read a small table whole, and keeps
 * that plan when the table has grown.
 */
const plansByKey = [
  'SET enable_seqscan = off',
  'SET enable_hashjoin = off',
  'SET enable_mergejoin = off',
  // Otherwise each call plans again those statements whose plan may depend on the values.
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
    ...(kind === 'commit' || kind === 'soon' ? plansByKey : []),
    searchFunctions(),
  ]
}
