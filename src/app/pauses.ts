import type { AdminLedger, Pause } from '../../db/admin'
import type { Ledger } from '../../db/Ledger'

type Options = {
  ledger: Pick<AdminLedger, 'pauses' | 'setPause'>
  /** Reports pauses that other processes have set, where processes share the ledger. */
  onChange?: Ledger['onChange']
  now: () => number
  fault?: (error: unknown) => void
}

/** Time after which a read that failed is repeated, ms. */
const againMs = 1_000

/** The merchants and networks whose sales an operator has paused: in the ledger, so over a restart. */
export async function createPauses({ ledger, onChange, now, fault }: Options) {
  let pauses = await ledger.pauses()
  let names = namesOf(pauses)
  let last: Promise<unknown> = Promise.resolve()
  const keep = (next: readonly Pause[]) => {
    pauses = next
    names = namesOf(next)
  }
  const ignore = () => undefined
  // Runs after our own changes, because an older list could otherwise replace a newer one. Until a
  // failed read is repeated, this gateway sells what an operator has paused at another one.
  const read = () => {
    const reading = last.then(async () => keep(await ledger.pauses()))
    last = reading.catch((error: unknown) => {
      fault?.(error)
      setTimeout(read, againMs).unref()
    })
  }
  onChange?.({ payment: ignore, job: ignore, anything: read })
  const set = async ({ kind, name }: Pick<Pause, 'kind' | 'name'>, isPause: boolean) => {
    if (names.has(`${kind} ${name}`) === isPause) return false
    keep(await ledger.setPause({ kind, name, at: now() }, isPause))
    return true
  }
  return {
    /** From memory, because each request reads it. */
    has: (kind: Pause['kind'], name: string) => names.size > 0 && names.has(`${kind} ${name}`),
    all: () => pauses,
    /** Resolves when it is on the disk. False when nothing changed. */
    set(of: Pick<Pause, 'kind' | 'name'>, isPause: boolean): Promise<boolean> {
      const next = last.then(() => set(of, isPause))
      last = next.catch(() => undefined)
      return next
    },
  }
}

function namesOf(pauses: readonly Pause[]): ReadonlySet<string> {
  return new Set(pauses.map(({ kind, name }) => `${kind} ${name}`))
}
