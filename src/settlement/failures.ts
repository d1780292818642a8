import type { Transfer } from '../protocol/Transfer'
import { type Code, keyOfCode } from './code'
import type { Context } from './context'

/**
 * What payers cost us in vain. A payer whose signature is proven and whose transaction then fails
 * has burnt our gas: a few times that is bad luck, then it is an attack and the payer waits. Only
 * proven signatures count here, so that junk in somebody's name cannot lock that somebody out.
 */
export type Failures = {
  /**
   * Seconds until one more payment of the payer may be sent; 0 when it may now. A payer with a
   * failure on record, and one with code (which may fail at will), has no more payments under way
   * than it may still fail. `more`: of its payments that are about to be sent.
   */
  waitSeconds(payer: Payer, more?: number): number
  /** How many more payments of an address may be under way. */
  roomOf(address: string): number
  /** A payment of the payer is on its way, until the result is called. */
  begin(payer: Payer): () => void
  /** A transaction with a payment of this payer was included and failed. */
  record(payer: Payer): void
  /** A payment of the payer was confirmed. */
  earn(payer: Payer): void
}

/** Of whom a failure would be. */
export type Payer = {
  address: string
  /** What is behind it; undefined: not known. */
  code: Code | undefined
  /**
   * A payer with code that never paid: it has one failure, and as many as all new payers with the same
   * code have together. A wallet costs its maker next to nothing. Code that many wallets run proves
   * little: a proxy may have another contract behind it, an account may delegate elsewhere and back in
   * one block. So each wallet of the code that has paid gives the new ones one failure more, and nobody
   * locks out all who use a popular wallet for the gas of a few failures.
   */
  isNew: boolean
}

/** Of whom a failure would be. `code`: as far as it is known. */
export function payerOf(
  { store }: Pick<Context, 'store'>,
  { transfer }: { transfer: Transfer },
  code: Code | undefined,
): Payer {
  const isNew = typeof code === 'object' && !store.hasPaid(transfer)
  return { address: transfer.payer, code, isNew }
}

/** Most failures that new payers with the same code have together. */
const sharedMax = 100
/** The time in which all failures of a payer are forgotten. */
const windowMs = 600_000
const payersMax = 10_000
/** Codes whose payers are remembered. */
const codesMax = 1_000
/** Payments that an address may have under way: at first, and once it has paid often. */
const roomMin = 16
const roomMax = 64

/** In memory: a restart forgives. `now` is unix ms; `most`: failures that a payer has at once. */
export function createFailures(now: () => number, most = 5): Failures {
  /** When a bucket is full again (GCRA), by address or by code. */
  const fullAt = new Map<string, number>()
  const underWay = new Map<string, number>()
  const paid = new Map<string, number>()
  /** Payers that have paid, by their code. */
  const proven = new Map<string, Set<string>>()

  /** Failures that all new payers with a code have together. */
  const sharedBy = (key: string) => Math.min(most + (proven.get(key)?.size ?? 0), sharedMax)

  const debtMs = (key: string) => {
    const debt = (fullAt.get(key) ?? 0) - now()
    // More than a full bucket: the clock was set back, and the time means nothing.
    return debt > windowMs ? 0 : Math.max(debt, 0)
  }

  /**
   * `size`: failures that the bucket of the key holds, of which `failures` may be used. `isBounded`:
   * also while there is no failure on record.
   */
  const waitOf = (
    key: string,
    { size, failures }: { size: number; failures: number },
    isBounded: boolean,
    more: number,
  ) => {
    const debt = debtMs(key)
    const tokenMs = windowMs / size
    const missingMs = debt - (failures - 1) * tokenMs
    if (missingMs > 0) return Math.ceil(missingMs / 1000)
    if (debt === 0 && !isBounded) return 0
    const left = Math.floor(failures - debt / tokenMs)
    return (underWay.get(key) ?? 0) + more < left ? 0 : 1
  }

  const count = (key: string, change: 1 | -1) => {
    const left = (underWay.get(key) ?? 0) + change
    if (left > 0) underWay.set(key, left)
    else underWay.delete(key)
  }

  /** A failure is forgotten after its part of the time. */
  const add = (key: string, size: number) => {
    const next = now() + Math.min(debtMs(key) + windowMs / size, windowMs)
    // Last in the order of insertion: the oldest go first.
    fullAt.delete(key)
    fullAt.set(key, next)
    if (fullAt.size > payersMax) forget()
  }

  return {
    waitSeconds({ address, code, isNew }, more = 0) {
      const hasCode = typeof code === 'object'
      const own = waitOf(address, { size: most, failures: isNew ? 1 : most }, hasCode, more)
      if (!hasCode || !isNew) return own
      const key = keyOfCode(code)
      const size = sharedBy(key)
      return Math.max(own, waitOf(key, { size, failures: size }, true, more))
    },
    roomOf(address) {
      const most = Math.min(roomMax, roomMin + (paid.get(address) ?? 0))
      return most - (underWay.get(address) ?? 0)
    },
    begin({ address, code }) {
      const keys = typeof code === 'object' ? [address, keyOfCode(code)] : [address]
      for (const key of keys) count(key, 1)
      let isOver = false
      return () => {
        if (!isOver) for (const key of keys) count(key, -1)
        isOver = true
      }
    },
    record({ address, code, isNew }) {
      add(address, most)
      // One that has paid answers for itself.
      if (typeof code !== 'object' || !isNew) return
      const key = keyOfCode(code)
      add(key, sharedBy(key))
    },
    earn({ address, code }) {
      const before = paid.get(address) ?? 0
      keep(paid, address, Math.min(before + 1, roomMax), payersMax)
      if (typeof code !== 'object') return
      const key = keyOfCode(code)
      const known = proven.get(key) ?? new Set()
      if (known.size < sharedMax) known.add(address)
      keep(proven, key, known, codesMax)
    },
  }

  /** Every entry cost a failed transaction: as many as fit are far below any gas budget. */
  function forget(): void {
    const time = now()
    for (const [key, at] of fullAt) if (at <= time) fullAt.delete(key)
    for (const [key] of fullAt) {
      if (fullAt.size <= payersMax) return
      fullAt.delete(key)
    }
  }
}

/** Of more than `max` entries the newest are kept. */
function keep<T>(map: Map<string, T>, key: string, value: T, max: number): void {
  map.delete(key)
  map.set(key, value)
  const [oldest] = map.keys()
  if (map.size > max && oldest !== undefined) map.delete(oldest)
}
