import type { IncludedPayment, Inclusion, SettlingCommits } from '../Ledger'
import type { Payment } from '../Payment'
import { toPayment } from '../rows'
import * as Event from '../WebhookEvent'
import type { Change } from './commits'
import { isDuplicate } from './errors'
import { fenceOf, fenceOfFirst, laneKey } from './fences'
import { dayOf, type GasSum } from './gas'
import { arrayText, type Json } from './rows'
import type { SettlingParts } from './settling-parts'

type Ends = Pick<SettlingCommits, 'record' | 'giveUp'>
type Confirmed = readonly (Payment | undefined)[]
type Options = {
  isCostly: boolean
  /** Whether no log is expected to be taken. */
  isFirst: boolean
}

/** A log may be taken, and others may record another transaction at the nonce at the same time. */
const attemptsMax = 3

/** What ends an account nonce. */
export function createEnds(parts: SettlingParts): Ends {
  return {
    async record(inclusion, members, options) {
      // After a loss the chain restores this, except that a delivery was started.
      const isSoon = !members.some((each) => each.startsDelivery)
      const { sum, confirmed } = await repeatDuplicate((isFirst) => {
        const isCostly = options?.isCostly ?? false
        const change = recordOf(parts, inclusion, members, { isCostly, isFirst })
        return isSoon ? parts.commits.addSoon(change) : parts.commits.add(change)
      })
      const { network, product } = inclusion.included
      parts.gas.note({ network, product, day: dayOf(inclusion.at), sum })
      return confirmed
    },
    async giveUp({ hashes, payments, job, at }) {
      await parts.commits.add({
        call: 'give_up',
        input: { fence: await fenceOfFirst(parts, hashes), hashes, payments, job: job ?? null, at },
        key: payments[0] ?? job ?? '',
        read: () => undefined,
      })
    },
  }
}

function recordOf(
  parts: SettlingParts,
  inclusion: Inclusion,
  members: readonly IncludedPayment[],
  { isCostly, isFirst }: Options,
): Change<{ sum: GasSum; confirmed: Confirmed }> {
  const { included, success, blockNumber, spentWei, receipt, hashes, job, at } = inclusion
  const { hash, network, relayer, nonce, product } = included
  const assigned = assign(members)
  const confirmedOf = (value: Json) => paymentsOf(value as Recorded, inclusion, members)
  return {
    call: 'record',
    input: {
      fence: fenceOf(parts, included),
      by: parts.gateway,
      included: { hash, network, relayer, nonce, product },
      success,
      block_number: Number(blockNumber),
      spent_wei: String(spentWei),
      receipt,
      hashes: arrayText(hashes),
      job: job ?? null,
      at,
      day: dayOf(at),
      is_costly: isCostly,
      first: members[0]?.id ?? null,
      all: arrayText(members.map(({ id }) => id).toSorted()),
      is_known: isFirst && members.every(({ payment }) => payment !== undefined),
      ...(isFirst ? columnsOf(assigned) : { members: members.map(memberOf) }),
    },
    key: laneKey(included),
    read: (value) => {
      const paid = confirmedOf(value)
      return { sum: sumOf(value), confirmed: members.map(({ id }) => paid.get(id)) }
    },
    events: {
      types: ['budget.spent', 'payment.confirmed'],
      of: (value) => {
        const paid = confirmedOf(value)
        const { wei: afterWei } = sumOf(value)
        const beforeWei = afterWei - spentWei
        return [
          ...listOf(parts.spent({ network, product, at, beforeWei, afterWei })),
          ...members.flatMap(({ id }) => {
            const payment = paid.get(id)
            return payment ? [Event.paymentConfirmed(payment, at)] : []
          }),
        ]
      },
    },
  }
}

type Recorded = {
  /** Rows that have other values than those of a payment that is confirmed for the first time. */
  confirmed?: readonly Json[]
  /** All that are confirmed. */
  paid: readonly string[]
  wei: string
  wasted: string
}

/** The confirmed payments by id; those that are as expected, from memory. */
function paymentsOf(
  { confirmed = [], paid }: Recorded,
  { included, blockNumber, at }: Inclusion,
  members: readonly IncludedPayment[],
): ReadonlyMap<string, Payment> {
  const rows = confirmed.map(toPayment)
  const found = new Map(rows.map((payment) => [payment.id, payment]))
  if (found.size === paid.length) return found
  const indexes = new Map(assign(members).map(({ id, index }) => [id, index]))
  const known = new Map(members.map((member) => [member.id, member]))
  for (const id of paid) {
    const member = known.get(id)
    if (member?.payment === undefined || found.has(id)) continue
    const { transfer, purpose, createdAt } = member.payment
    found.set(id, {
      ...{ id, transfer, purpose, createdAt },
      ...{ nonceUsed: false, truncated: false, answered: false, upstreamStatus: undefined },
      ...{ redeemTokenHash: undefined, redeemUntil: undefined, deliveredAt: undefined },
      state: 'confirmed',
      transaction: included.hash,
      logIndex: indexes.get(id),
      blockNumber,
      confirmedAt: at,
      delivery: member.startsDelivery ? 'delivering' : 'none',
      attempts: member.startsDelivery ? 1 : 0,
    })
  }
  return found
}

function sumOf(value: Json): GasSum {
  const { wei, wasted } = value as Recorded
  return { wei: BigInt(wei), wastedWei: BigInt(wasted) }
}

type Assigned = { id: string; index: number; starts: boolean }

/** A log for each member, in their order, as the database assigns them while none is taken. */
function assign(members: readonly IncludedPayment[]): readonly Assigned[] {
  const taken = new Set<number>()
  return members.flatMap(({ id, logs, startsDelivery: starts }) => {
    const index = logs.find((each) => !taken.has(each))
    if (index === undefined) return []
    taken.add(index)
    return { id, index, starts }
  })
}

function columnsOf(assigned: readonly Assigned[]): Readonly<Record<string, Json>> {
  return {
    ids: arrayText(assigned.map(({ id }) => id)),
    indexes: arrayText(assigned.map(({ index }) => index)),
    starts: arrayText(assigned.map(({ starts }) => starts)),
  }
}

function memberOf({ id, logs, startsDelivery: starts }: IncludedPayment): Json {
  return { id, logs, starts }
}

function listOf<T>(value: T | undefined): T[] {
  return value === undefined ? [] : [value]
}

async function repeatDuplicate<T>(run: (isFirst: boolean) => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await run(attempt === 1)
    } catch (error) {
      if (attempt === attemptsMax || !isDuplicate(error)) throw error
    }
  }
}
