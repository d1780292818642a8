import { apartMs, type FailureLedger, ownFailures } from '../../../db/Ledger'
import type { PaymentReads } from '../../../db/payment-reads'
import {
  type AccountCode,
  type IdentifiedCode,
  isContract,
  isIdentified,
} from '../../chain/multicall'
import type { Transfer } from '../../protocol/Transfer'

/** State about payers, in memory: a restart resets all but failures that are `shared`. */
export type Payers = ReturnType<typeof createPayers>

/** `now` is unix ms; `failuresMax`: failures that a payer may have at once. */
export function createPayers(now: () => number, failuresMax?: number, shared?: FailureLedger) {
  const failures = createFailures(now, failuresMax, shared)
  const reserved = createReservedAmounts()
  return {
    failures,
    signers: createSigners(now),
    /** By payments. */
    reserved,
    /** By ceilings of the scheme `upto`. */
    authorized: createReservedAmounts(),
    /** Call it in the same turn of the event loop as the checks of balance and failures. */
    reserve(transfer: Transfer, payer: Payer): Reservation {
      reserved.add(transfer)
      return { payer, leave: failures.begin(payer) }
    },
    /** Releases the reservation of a payment that is not sent. */
    release(transfer: Transfer, { leave }: Reservation): void {
      leave()
      reserved.release(transfer)
    },
  }
}

/** The payer that a failure would count against. */
export type Payer = {
  address: string
  /** Its code, as far as it was read. */
  code: AccountCode
  /**
   * A payer with code that never paid may fail once. All new payers with the same code share one
   * limit, because creating a wallet costs almost nothing. Each wallet of the code that has paid
   * raises this limit by one failure. Otherwise an attacker could block all wallets of a common
   * code with a few failures. The code alone is no identity: a proxy may change its contract, and
   * an account may delegate and revert that in one block.
   */
  isNew: boolean
}

/**
 * The payer that a payment's failure would count against. `code` is `contract` where its code is assumed, and
 * not read.
 */
export async function payerOf(
  { hasPaid }: Pick<PaymentReads, 'hasPaid'>,
  transfer: Transfer,
  code: AccountCode,
): Promise<Payer> {
  const isNew = isContract(code) && !(await hasPaid(transfer))
  return { address: transfer.payer, code: code === 'contract' ? 'unknown' : code, isNew }
}

/**
 * Keeps what payments have reserved until the result is called, which may be called again. Call it
 * before a balance is read, and the result when the amount that this balance must cover is reserved.
 */
export function beginRead({ reading }: { reading: Set<Promise<unknown>> }): () => void {
  const { promise, resolve } = Promise.withResolvers<void>()
  reading.add(promise)
  return () => {
    reading.delete(promise)
    resolve()
  }
}

/** The amount that a payment reserves, and its place among the open payments of the payer. */
export type Reservation = { payer: Payer; leave: () => void }

/** Most failures that new payers with the same code have together. */
const sharedMax = 100

/** The time in which all failures of a payer expire. */
const windowMs = 600_000

const payersMax = 10_000

/** Codes whose payers are stored. */
const codesMax = 1_000

/** Payments that an address may have open: initially, and after many paid ones. */
const roomMin = 16

const roomMax = 64

/**
 * Failures of payers that cost us gas. A payer with a proven signature whose transaction fails has
 * wasted our gas. After a few failures that counts as an attack, and the payer waits. Only proven
 * signatures count, so that forgeries in a payer's name cannot block that payer.
 */
export function createFailures(now: () => number, most = 5, shared: FailureLedger = ownFailures) {
  const debts = createFailureBuckets(now, shared)
  const underWay = createCounts()
  const paid = new Map<string, number>()
  /** Payers that have paid, by their code. */
  const paidOfCode = new Map<string, Set<string>>()

  /** Failures that all new payers with a code may have together. */
  const sharedBy = (key: string) => Math.min(most + (paidOfCode.get(key)?.size ?? 0), sharedMax)

  /**
   * `size`: capacity of the key's bucket, of which `failures` may be used. `isBounded`: limited
   * even without a recorded failure.
   */
  const waitOf = (
    key: string,
    { size, failures, isBounded }: { size: number; failures: number; isBounded: boolean },
  ) => {
    const debt = debts.ms(key)
    const tokenMs = windowMs / size
    const missingMs = debt - (failures - 1) * tokenMs
    if (missingMs > 0) return Math.ceil(missingMs / 1000)
    if (debt === 0 && !isBounded) return 0
    const left = Math.floor(failures - debt / tokenMs)
    return underWay.of(key) < left ? 0 : 1
  }

  return {
    /**
     * Seconds until one more payment of the payer may be sent; 0 when it may now. Payers with a
     * recorded failure, or with code (which may fail at will), are limited: they have at most as many
     * open payments as they may still fail.
     */
    waitSeconds({ address, code, isNew }: Payer): number {
      const isBounded = isIdentified(code)
      const own = waitOf(address, { size: most, failures: isNew ? 1 : most, isBounded })
      if (!isBounded || !isNew) return own
      const key = keyOfCode(code)
      const size = sharedBy(key)
      return Math.max(own, waitOf(key, { size, failures: size, isBounded: true }))
    },
    /** How many more payments of an address may be open. */
    roomOf(address: string): number {
      const room = Math.min(roomMax, roomMin + (paid.get(address) ?? 0))
      return room - underWay.of(address)
    },
    /** Counts a payment of the payer as open until the result is called. */
    begin({ address, code }: Payer): () => void {
      return underWay.add(isIdentified(code) ? [address, keyOfCode(code)] : [address])
    },
    /** A transaction with a payment of this payer was included and failed. */
    record({ address, code, isNew }: Payer): void {
      const own = { key: address, size: most }
      // A payer that has paid counts only under its own address.
      const key = isIdentified(code) && isNew ? keyOfCode(code) : undefined
      debts.add(key === undefined ? [own] : [own, { key, size: sharedBy(key) }])
    },
    /** A payment of the payer was confirmed. */
    recordPaid({ address, code }: Payer): void {
      keep(paid, address, Math.min((paid.get(address) ?? 0) + 1, roomMax), payersMax)
      if (!isIdentified(code)) return
      const key = keyOfCode(code)
      const known = paidOfCode.get(key) ?? new Set()
      if (known.size < sharedMax) known.add(address)
      keep(paidOfCode, key, known, codesMax)
    },
  }
}

/** Recorded failures (GCRA), by address or by code. */
function createFailureBuckets(now: () => number, shared: FailureLedger) {
  /** The time at which a bucket is full again, by key. */
  const fullAt = new Map<string, number>()

  const until = (at: number) => {
    const debt = at - now()
    // Much more than a full bucket: the clock was set back, and the time is meaningless.
    return debt > windowMs + apartMs ? 0 : Math.min(Math.max(debt, 0), windowMs)
  }
  const ms = (key: string) => Math.max(until(fullAt.get(key) ?? 0), until(shared.fullAt(key)))

  return {
    ms,
    /** Adds a failure to buckets of these sizes. It expires after its part of the window. */
    add(failures: readonly { key: string; size: number }[]): void {
      const time = now()
      // What has expired makes room first. Each entry cost a failed transaction, so the gas budget bounds
      // their number, too.
      if (fullAt.size + failures.length > payersMax)
        for (const [key, at] of fullAt) if (at <= time) fullAt.delete(key)
      for (const { key, size } of failures)
        keep(fullAt, key, time + Math.min(ms(key) + windowMs / size, windowMs), payersMax)
      const added = failures.map(({ key, size }) => ({ key, ms: windowMs / size }))
      // When the database is away, the failure counts at this process only.
      shared.add(added, windowMs).catch(() => undefined)
    },
  }
}

/** Open payments, by address and by code. */
function createCounts() {
  const counts = new Map<string, number>()
  const change = (key: string, by: 1 | -1) => {
    const left = (counts.get(key) ?? 0) + by
    if (left > 0) counts.set(key, left)
    else counts.delete(key)
  }
  return {
    of: (key: string) => counts.get(key) ?? 0,
    /** Counts until the result is called. */
    add(keys: readonly string[]): () => void {
      for (const key of keys) change(key, 1)
      let isOver = false
      return () => {
        if (!isOver) for (const key of keys) change(key, -1)
        isOver = true
      }
    },
  }
}

/** Key under which failures of all accounts with this code are counted. */
function keyOfCode({ key }: IdentifiedCode): string {
  return `code ${key}`
}

/** Keeps the newest `max` entries. */
function keep<T>(map: Map<string, T>, key: string, value: T, max: number): void {
  map.delete(key)
  map.set(key, value)
  const [oldest] = map.keys()
  if (map.size > max && oldest !== undefined) map.delete(oldest)
}

const suspendedMs = 600_000

/**
 * Payers whose own key signed recently. Their signer need not be recovered before the node call:
 * recovering costs a quarter of a payment, and the simulation fails for another signer. A client
 * that presents forged signatures must not cost a node call for each, so one forgery suspends the
 * cache. `now` is unix ms.
 */
function createSigners(now: () => number) {
  const payers = new Set<string>()
  let suspendedAt: number | undefined
  /** Whether every signer must be recovered now. */
  const isSuspended = () => suspendedAt !== undefined && Math.abs(now() - suspendedAt) < suspendedMs
  return {
    isSuspended,
    /**
     * Whether the simulation may verify the signature. `isAlone`: the payer shares no simulation. One
     * forgery among several payments adds no node call; alone it would.
     */
    mayDefer: (transfer: Transfer, isAlone: boolean): boolean =>
      !isSuspended() && (!isAlone || payers.has(payerKey(transfer))),
    /** A payment that the payer's own key signed was sent. */
    add(transfer: Transfer): void {
      if (payers.size >= payersMax) payers.clear()
      payers.add(payerKey(transfer))
    },
    /**
     * The payer's own key did not sign a payment that was sent: the payer has code that accepts it.
     */
    remove: (transfer: Transfer): void => void payers.delete(payerKey(transfer)),
    /** A signature was forged: every signer is recovered for a while. */
    suspend(): void {
      suspendedAt = now()
    },
  }
}

/** Amounts of open payments by payer, so that one balance is not reserved twice. */
function createReservedAmounts() {
  const amounts = new Map<string, bigint>()
  const of = (transfer: Transfer) => amounts.get(payerKey(transfer)) ?? 0n
  return {
    /** Sum of the payer's reserved amounts, atomic. */
    of,
    add: (transfer: Transfer): void =>
      void amounts.set(payerKey(transfer), of(transfer) + transfer.amountAtomic),
    release(transfer: Transfer): void {
      const left = of(transfer) - transfer.amountAtomic
      if (left > 0n) amounts.set(payerKey(transfer), left)
      else amounts.delete(payerKey(transfer))
    },
  }
}

/** A payer of one asset. */
function payerKey({ network, asset, payer }: Transfer): string {
  return `${network}/${asset}/${payer}`
}
