import type { Finding, Kind } from './finding'
import { meter, type Reported } from './model'
import { type Disturbance, isOfPaused } from './overlaps'
import type { ByUse, Purchase } from './purchase'
import type { AuthorizationRow, PaymentRow } from './rows'
import type { Call } from './upstream'

/** All that is known of a purchase by the scheme `upto`. */
export type ByUseCase = {
  purchase: Pick<Purchase, 'amountAtomic' | 'byUse' | 'end' | 'received' | 'said'>
  authorization: AuthorizationRow | undefined
  payment: PaymentRow | undefined
  /** Requests that the upstream got for it, the oldest first. */
  calls: readonly Call[]
  /** The chain shows its nonce as used. */
  isPaid: boolean
  /** When the program was killed, unix ms. */
  killedAt: readonly number[]
  /** Of several gateways. */
  disturbances?: readonly Disturbance[]
}

/** How a purchase by use ended, for the report. */
export type ByUseEnd =
  | 'settled'
  | 'settled, its buyer left'
  | 'settled, a crash cut the end of the stream'
  | 'void, the answer failed'
  | 'void by a crash, whole answer'
  | 'void by a crash, stream'
  | 'nothing was written'

/** The gateway knows of a closed connection within this time, ms. */
const leaveSlackMs = 500
/** A crash may be noticed by the upstream so much later than its last byte was sent, ms. */
const crashSlackMs = 2_000

/**
 * What the answers to these requests may cost: the charge of the first, as the upstream counts it.
 * An authorization gets one answer; later ones redeem what it paid. Two amounts are possible only
 * when the buyer left a stream that broke afterwards.
 */
export function possibleCharges(
  calls: readonly Call[],
  { amountAtomic, byUse }: { amountAtomic: bigint; byUse?: Pick<ByUse, 'hasLeft'> | undefined },
): readonly bigint[] {
  const [first] = calls
  if (first?.model === undefined) return [0n]
  if (first.end === 'complete') return [costOf(first.model.reported, amountAtomic)]
  const isUnread = first.model.bytes > 0 && byUse?.hasLeft === true
  return isUnread ? [0n, amountAtomic] : [0n]
}

function costOf(reported: Reported, ceilingAtomic: bigint): bigint {
  if (reported === 'error') return 0n
  if (reported === 'missing') return ceilingAtomic
  const { input, output } = reported
  const cost = meter.base + BigInt(input) * meter.input + BigInt(output) * meter.output
  return cost < ceilingAtomic ? cost : ceilingAtomic
}

/**
 * What payers had for nothing beyond what they paid, atomic. Requests that a crash ended are not theirs to
 * pay.
 */
export function lossOf(
  authorizations: readonly AuthorizationRow[],
  payments: readonly PaymentRow[],
): bigint {
  const paid = new Map(
    payments.filter(({ state }) => state === 'confirmed').map((row) => [row.id, row]),
  )
  let sum = 0n
  for (const [, rows] of Map.groupBy(authorizations, ({ payer }) => payer.toLowerCase())) {
    let short = 0n
    for (const { id, failed_at, ceiling_atomic, charge_atomic } of rows) {
      const payment = paid.get(id)
      if (payment !== undefined) short -= BigInt(payment.amount_atomic)
      else if (failed_at !== null) short += BigInt(charge_atomic || 0) || BigInt(ceiling_atomic)
    }
    if (short > 0n) sum += short
  }
  return sum
}

/** The amount that the chain should have moved for a purchase that is paid. */
export function dueOf({ purchase, payment, calls }: ByUseCase): bigint {
  const charges = possibleCharges(calls, purchase)
  const settled = BigInt(payment?.amount_atomic ?? 0)
  return charges.includes(settled) ? settled : (charges.find((charge) => charge > 0n) ?? 0n)
}

/** The faults of a purchase, and how it ended; `end` is undefined when there are faults. */
export function judgeByUse(it: ByUseCase): { findings: Finding[]; end: ByUseEnd | undefined } {
  const findings: Finding[] = []
  const add = (kind: Kind, text: string) => void findings.push({ kind, text })
  judgeAnswers(it, add)
  const end = it.isPaid ? judgeSettled(it, add) : judgeUnsettled(it, add)
  return { findings, end: findings.length === 0 ? end : undefined }
}

type Add = (kind: Kind, text: string) => void

/** What holds for every purchase: one authorization, and no work that no attempt explains. */
function judgeAnswers(it: ByUseCase, add: Add): void {
  const { purchase, authorization, payment, calls, disturbances = [] } = it
  const { received } = purchase
  if (received.some(({ paymentId }) => paymentId !== authorization?.id))
    add('mismatch', 'the answer was made for another authorization')
  if (new Set(calls.map(({ paymentId }) => paymentId)).size > 1)
    add('double', 'the upstream worked for two authorizations of one request')
  if (calls.length > 1 + (payment?.attempts ?? 0))
    add('double', `${calls.length} upstream calls for ${payment?.attempts ?? 0} attempts`)
  const answeredAt = received[0]?.at
  const isAgain = (call: Call) =>
    answeredAt !== undefined && call.at > answeredAt && !isOfPaused(call, answeredAt, disturbances)
  if (calls.some(isAgain)) add('double', 'the upstream worked again after the buyer had the answer')
  const state = authorization?.state
  if (state === 'authorized' || state === 'metered') add('stuck', `the authorization is ${state}`)
  if (state === 'failed') add('refused', 'the charge of an honest buyer was given up')
}

function judgeSettled(it: ByUseCase, add: Add): ByUseEnd {
  const { purchase, authorization, payment, calls } = it
  if (authorization === undefined || payment === undefined) {
    add('mismatch', 'settled, and the ledger has not both an authorization and a payment')
    return 'settled'
  }
  const settled = BigInt(payment.amount_atomic)
  const charges = possibleCharges(calls, purchase)
  if (charges.every((charge) => charge === 0n))
    add('lost', `settled ${settled} for an answer that failed or was never made`)
  else if (!charges.includes(settled))
    add('mismatch', `settled ${settled}, the upstream counted ${charges.join(' or ')}`)
  if (settled > purchase.amountAtomic)
    add('mismatch', `settled ${settled} of a signed ceiling of ${purchase.amountAtomic}`)
  if (authorization.state !== 'sent')
    add('mismatch', `settled, and the authorization is ${authorization.state}`)
  if (authorization.charge_atomic !== payment.amount_atomic)
    add('mismatch', `settled ${settled}, the ledger charged ${authorization.charge_atomic}`)
  if (BigInt(authorization.ceiling_atomic) !== purchase.amountAtomic)
    add('mismatch', `signed ${purchase.amountAtomic}, the ledger has another ceiling`)
  judgeTold(it, payment, add)
  return judgeDelivered(it, payment, add)
}

/** An answer with a head that names its settlement must name the real one. */
function judgeTold({ purchase, authorization }: ByUseCase, payment: PaymentRow, add: Add): void {
  for (const { settled } of purchase.received) {
    // Streams are settled at their end, so only a redeemed one has it in its head.
    if (settled === undefined && authorization?.is_delivered === 1) continue
    if (settled === undefined || settled.transaction === '')
      add('unpaid', 'the buyer had the answer before it was settled')
    else if (settled.amount !== payment.amount_atomic)
      add('mismatch', `the buyer was told ${settled.amount}, settled ${payment.amount_atomic}`)
  }
}

/** Whether the buyer of a settled charge has what it paid for, or could still get it. */
function judgeDelivered({ purchase, calls }: ByUseCase, payment: PaymentRow, add: Add): ByUseEnd {
  const { byUse, end, said } = purchase
  if (end === 'answered') return 'settled'
  if (end === 'open') {
    add('stuck', 'paid, and the buyer still asks')
    return 'settled'
  }
  const isUsedUp = said.at(-1)?.code === 'redeem-exhausted' && calls.at(-1)?.end === 'failed'
  if (isUsedUp) return 'settled'
  if (payment.delivery !== 'delivered') {
    if (end === 'refused') add('lost', 'paid and undelivered, and the buyer was refused')
    // A buyer that left and never came back can redeem it.
    return 'settled, its buyer left'
  }
  const leftAt = said.find(({ code }) => code === 'left')?.at
  // Or its balancer, because the gateway was paused: docs/pricing.md says that a stream is charged then.
  if (byUse?.isStream && (leftAt !== undefined || byUse.hasLeft)) return 'settled, its buyer left'
  // The answer was on its way while the buyer closed its connection.
  if (leftAt !== undefined && (payment.delivered_at ?? 0) <= leftAt + leaveSlackMs)
    return 'settled, its buyer left'
  const sent = calls[0]?.model?.bytes ?? 0
  if (byUse?.isStream !== true || byUse.bytes < sent)
    add('lost', `paid, and the buyer has ${byUse?.bytes} bytes of ${sent}`)
  return 'settled, a crash cut the end of the stream'
}

function judgeUnsettled(it: ByUseCase, add: Add): ByUseEnd {
  const { purchase, authorization, payment, calls, killedAt } = it
  const { end, received, said, byUse } = purchase
  const isFree = possibleCharges(calls, purchase).includes(0n)
  if (received.length > 0 && !isFree) add('unpaid', 'the buyer has an answer that was not settled')
  if (payment !== undefined && payment.state === 'confirmed')
    add('mismatch', 'the payment is confirmed, and the chain has not used its nonce')
  if (end === 'open') add('stuck', 'neither settled nor refused')
  if (authorization === undefined) {
    if (calls.length > 0) add('unpaid', 'the upstream worked without an authorization')
    if (end === 'refused' && said.at(-1)?.code !== 'payment-expired')
      add('refused', 'a valid credential was refused')
    return 'nothing was written'
  }
  if (authorization.state === 'sent') add('mismatch', 'sent, and the chain has not settled it')
  if (authorization.state === 'void' && authorization.charge_atomic !== '0')
    add('mismatch', `void with a charge of ${authorization.charge_atomic}`)
  if (calls.length > 0 && isFree) {
    if (authorization.failed_at === null && !wasCut(authorization, calls, killedAt))
      add('unpaid', 'the upstream worked for nothing, and the ledger does not count it')
    return 'void, the answer failed'
  }
  if (!wasCut(authorization, calls, killedAt))
    add('unpaid', 'an answer was made and not charged, and no crash came in between')
  return byUse?.isStream === true ? 'void by a crash, stream' : 'void by a crash, whole answer'
}

/** Whether the program was killed while it made the answer. */
function wasCut(
  { created_at }: AuthorizationRow,
  calls: readonly Call[],
  killedAt: readonly number[],
): boolean {
  const endedAt = calls[0]?.model?.endedAt ?? created_at
  return killedAt.some((at) => at >= created_at - crashSlackMs && at <= endedAt + crashSlackMs)
}
