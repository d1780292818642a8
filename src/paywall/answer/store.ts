import type { AnswerLedger, AnswerUsage } from '../../../db/Ledger'
import type { Payment } from '../../../db/Payment'
import { type Counts, createCounts } from '../../http/counts'
import { dayMs } from '../../protocol/Time'
import type { Transfer } from '../../protocol/Transfer'

/** An answer as it was delivered. */
export type Answer = { status: number; headers: Headers; body: Uint8Array }

export type Answers = Awaited<ReturnType<typeof createAnswerStore>>

/** Longest body that is kept. */
export const answerMaxBytes = 1024 * 1024

/** Bytes of a row in addition to headers and body. */
const rowBytes = 256
/** Most answers are shorter; longer ones may exceed a share until they are stored. */
const reservedBytes = 256 * 1024
/** One owner may use this fraction of the store, so that others can still buy with a key. */
const shares = 8
const sweepMs = 60_000

/**
 * Whose share of the store an answer takes. Every account may open a channel in the name of a payer, so a
 * channel has a share of its own: the nonces of its payments begin with the same half. Twins: `usage` of both
 * ledgers.
 */
export function ownerOf({ method, nonce, payer }: Transfer): string {
  return method === 'channel' ? nonce.slice(0, 34) : payer
}

/**
 * Answers kept for idempotency keys and for buyers by use that have not got them: 24 hours, at most
 * 1 MiB each, capped in total (`totalMaxBytes`) and per owner.
 */
export async function createAnswerStore(
  ledger: AnswerLedger,
  totalMaxBytes = 256 * answerMaxBytes,
) {
  const room = createRoom(ledger, totalMaxBytes, await ledger.usage(rowBytes))
  return {
    async find(paymentId: string, now: number): Promise<Answer | undefined> {
      const row = await ledger.find(paymentId)
      if (row === undefined || row.expiresAt <= now) return undefined
      const pairs: [string, string][] = JSON.parse(row.headers)
      return { status: row.status, headers: new Headers(pairs), body: row.body }
    },
    /** Stores an answer; false when it is too long and was not stored. */
    async store(
      { id, transfer }: Pick<Payment, 'id' | 'transfer'>,
      { status, headers, body }: Answer,
      now: number,
    ): Promise<boolean> {
      if (body.byteLength > answerMaxBytes) return false
      const text = JSON.stringify([...headers])
      const times = { createdAt: now, expiresAt: now + dayMs }
      await ledger.store(id, { status, headers: text, body, ...times })
      room.use({ owner: ownerOf(transfer), bytes: body.byteLength + text.length + rowBytes })
      return true
    },
    reserve: room.reserve,
  }
}

/** The bytes of the answers, in total and by owner, with the reservations of running ones. */
function createRoom(ledger: AnswerLedger, totalMaxBytes: number, stored: readonly AnswerUsage[]) {
  let usage = createCounts()
  const reserved = createCounts()
  let sweepAt = 0
  let sweeping: Promise<void> | undefined
  /** Answers stored while the usage is read again. */
  let meanwhile: AnswerUsage[] = []
  const addTo = (counts: Counts, used: readonly AnswerUsage[]) => {
    for (const { owner, bytes } of used) counts.add(owner.toLowerCase(), bytes)
  }
  addTo(usage, stored)

  function hasRoom(owner: string): boolean {
    const key = owner.toLowerCase()
    const own = usage.of(key) + reserved.of(key)
    return (
      usage.total() + reserved.total() + answerMaxBytes <= totalMaxBytes &&
      own + Math.min(reservedBytes, totalMaxBytes / shares) <= totalMaxBytes / shares
    )
  }

  async function sweep(now: number): Promise<void> {
    const oldestAt = await ledger.sweep(now)
    sweepAt = Math.max(oldestAt ?? now, now + sweepMs)
    meanwhile = []
    const read = await ledger.usage(rowBytes)
    // Until the next sweep an answer may count twice, and is never left out.
    usage = createCounts()
    addTo(usage, [...read, ...meanwhile])
  }

  /** Deletes expired answers, when there may be some: once for all concurrent calls. */
  function sweepIfDue(now: number): Promise<void> {
    if (sweeping === undefined && now < sweepAt) return Promise.resolve()
    sweeping ??= sweep(now).finally(() => {
      sweeping = undefined
    })
    return sweeping
  }

  return {
    /**
     * Reserves room for an answer of `ownerOf`, until the result is called: when the answer is stored,
     * or never will be. Undefined when the cap or the owner's share of it is reached. Then nothing
     * with a key may be charged.
     */
    async reserve(owner: string, now: number): Promise<(() => void) | undefined> {
      if (!hasRoom(owner)) await sweepIfDue(now)
      // Check again in the turn that reserves: others may have taken room meanwhile.
      if (!hasRoom(owner)) return undefined
      let bytes = reservedBytes
      reserved.add(owner.toLowerCase(), bytes)
      return () => {
        reserved.add(owner.toLowerCase(), -bytes)
        bytes = 0
      }
    },
    use(used: AnswerUsage): void {
      addTo(usage, [used])
      if (sweeping !== undefined) meanwhile.push(used)
    },
  }
}
