import { type Audit, audit, waitUntilEnded } from './audit'
import type { Field } from './field'
import type { Payers } from './payers'
import type { Program } from './program'
import { conclude } from './report'
import type { Upstream } from './upstream'

export type Run = {
  field: Field
  upstream: Upstream
  program: Program
  payers: Payers
  title: string
  /** Asked for at the end, to be printed above those of the audit. */
  figures: () => Audit['figures']
}

/** What was started may take this long when nothing disturbs it any more. */
const purchasesMaxMs = 120_000
/** What is then left has no buyer who waits for it. */
const endMaxMs = 60_000

/**
 * Nothing new is bought and the upstream behaves: waits until everything has ended, ends the
 * program, and prints what the audit says. Returns the exit code.
 */
export async function finish(run: Run): Promise<number> {
  const { field, upstream, program, payers } = run
  upstream.behave()
  await payers.finish(purchasesMaxMs)
  const missing = await waitUntilEnded(field, program.database, endMaxMs)
  await program.stop()
  const { figures, findings } = await audit({
    field,
    purchases: payers.purchases,
    calls: upstream.calls,
    database: program.database,
    programFaults: program.faults,
  })
  return conclude(
    run.title,
    [...run.figures(), ...figures],
    missing === undefined ? findings : [...findings, { kind: 'stuck', text: missing }],
    program.directory,
  )
}
