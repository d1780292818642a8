import type { AdminLedger, Pause } from '../../db/AdminLedger'

/** The merchants and networks whose sales an operator has paused: in the ledger, so over a restart. */
export type Pauses = {
  /** From memory, because each request reads it. */
  has(kind: Pause['kind'], name: string): boolean
  all(): readonly Pause[]
  /** Counts only when it is on the disk. False when it was so already. */
  set(of: Pick<Pause, 'kind' | 'name'>, isPause: boolean): Promise<boolean>
}

type Options = { ledger: Pick<AdminLedger, 'pauses' | 'setPauses'>; now: () => number }

export async function createPauses({ ledger, now }: Options): Promise<Pauses> {
  let pauses = await ledger.pauses()
  let names = namesOf(pauses)
  let last: Promise<unknown> = Promise.resolve()
  const set = async ({ kind, name }: Pick<Pause, 'kind' | 'name'>, isPause: boolean) => {
    if (names.has(`${kind} ${name}`) === isPause) return false
    const others = pauses.filter((each) => each.kind !== kind || each.name !== name)
    const next = isPause ? [...others, { kind, name, at: now() }] : others
    await ledger.setPauses(next)
    pauses = next
    names = namesOf(next)
    return true
  }
  return {
    has: (kind, name) => names.size > 0 && names.has(`${kind} ${name}`),
    all: () => pauses,
    set(of, isPause) {
      const next = last.then(() => set(of, isPause))
      last = next.catch(() => undefined)
      return next
    },
  }
}

function namesOf(pauses: readonly Pause[]): ReadonlySet<string> {
  return new Set(pauses.map(({ kind, name }) => `${kind} ${name}`))
}
