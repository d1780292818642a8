import { type Audit, audit, waitUntilEnded } from './audit'
import type { Finding } from './finding'
import type { Disturbance } from './overlaps'
import type { Payers } from './payers'
import { conclude } from './report'
import type { Store } from './rows'
import type { Setup } from './setup'
import type { Upstream } from './upstream'

/** What is known of one program or of several when the run ends. */
export type Ended = {
  store: Store
  /** Has the log. */
  directory: string
  /** SIGTERM; resolves when it has ended. */
  stop(): Promise<void>
  /** How it ended without a signal, or with a wrong exit code after one. */
  faults: readonly string[]
  /** When it was killed, unix ms. */
  killedAt: readonly number[]
}

export type Run = {
  setup: Setup
  upstream: Upstream
  program: Ended
  payers: Pick<Payers, 'purchases' | 'finish'>
  /** What others than the payers have moved to the payee, by network, atomic. */
  moved?: () => Promise<ReadonlyMap<string, bigint>>
  /** What has not ended beside payments; undefined: nothing. */
  missing?: () => Promise<string | undefined>
  /** When gateways could be taken for dead. */
  disturbances?: () => readonly Disturbance[]
  title: string
  /** Further checks after the end of the program. */
  more?: () => Promise<readonly Finding[]>
  /** Says more of a finding. */
  explain?: (finding: Finding) => string
  /** Read at the end, and printed above the figures of the audit. */
  figures: () => Audit['figures']
}

/** Longest time for everything to finish after the faults. */
const purchasesMaxMs = 120_000
/** Time after which unfinished work has no waiting buyer. */
const endMaxMs = 60_000

/**
 * Waits, while nothing new is bought and the upstream works, until everything has ended. Then ends
 * the program and prints the result of the audit. Returns the exit code.
 */
export async function finish(run: Run): Promise<number> {
  const { setup, upstream, program, payers } = run
  upstream.behave()
  await payers.finish(purchasesMaxMs)
  const missing = await waitUntilEnded(setup, program.store, endMaxMs, run.missing)
  await program.stop()
  const { figures, findings } = await audit({
    setup,
    purchases: payers.purchases,
    // The others have an audit of their own.
    calls: upstream.calls.filter(({ serial }) => !/^[rc]/.test(serial)),
    store: program.store,
    programFaults: program.faults,
    killedAt: program.killedAt,
    disturbances: run.disturbances?.() ?? [],
    ...(run.moved && { moved: await run.moved() }),
  })
  const all = [...findings, ...((await run.more?.()) ?? [])]
  return conclude({
    title: run.title,
    figures: [...run.figures(), ...figures],
    findings: missing === undefined ? all : [...all, { kind: 'stuck', text: missing }],
    directory: program.directory,
    explain: run.explain,
  })
}

/** Sums by network. */
export function sumOf(...all: readonly ReadonlyMap<string, bigint>[]): Map<string, bigint> {
  const sums = new Map<string, bigint>()
  for (const [key, atomic] of all.flatMap((each) => [...each]))
    sums.set(key, (sums.get(key) ?? 0n) + atomic)
  return sums
}
