import type { IncludedPayment, Inclusion, SettlingCommits } from '../Ledger'
import type { Payment } from '../Payment'
import * as Event from '../WebhookEvent'
import type { Change } from './commits'
import { isDuplicate } from './errors'
import { fenceOf, fenceOfFirst, laneKey } from './fences'
import { dayOf, type GasSum } from './gas'
import { decode } from './payments'
import type { Json } from './rows'
import type { SettlingParts } from './settling-parts'

type Ends = Pick<SettlingCommits, 'record' | 'giveUp'>
type Confirmed = readonly (Payment | undefined)[]
type Options = Parameters<SettlingCommits['record']>[2]

/** Others may assign the log, or record another transaction at the nonce, at the same time. */
const attemptsMax = 3

/** What ends an account nonce. */
export function createEnds(parts: SettlingParts): Ends {
  return {
    async record(inclusion, members, options) {
      const change = recordOf(parts, inclusion, members, options)
      // After a loss the chain restores this, except that a delivery was started.
      const isSoon = !members.some((each) => each.startsDelivery)
      const { sum, confirmed } = await repeatDuplicate(() =>
        isSoon ? parts.commits.addSoon(change) : parts.commits.add(change),
      )
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
  options: Options,
): Change<{ sum: GasSum; confirmed: Confirmed }> {
  const { included, success, blockNumber, spentWei, receipt, hashes, job, at } = inclusion
  const { hash, network, relayer, nonce, product } = included
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
      hashes,
      job: job ?? null,
      at,
      day: dayOf(at),
      is_costly: options?.isCostly ?? false,
      members: members.map(({ id, logs, startsDelivery }) => ({
        id,
        logs,
        starts: startsDelivery,
      })),
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

type Recorded = { confirmed: readonly Json[]; gas: { wei: string; wasted_wei: string } }

function confirmedOf(value: Json): ReadonlyMap<string, Payment> {
  const payments = (value as Recorded).confirmed.map(decode)
  return new Map(payments.map((payment) => [payment.id, payment]))
}

function sumOf(value: Json): GasSum {
  const { wei, wasted_wei } = (value as Recorded).gas
  return { wei: BigInt(wei), wastedWei: BigInt(wasted_wei) }
}

function listOf<T>(value: T | undefined): T[] {
  return value === undefined ? [] : [value]
}

async function repeatDuplicate<T>(run: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await run()
    } catch (error) {
      if (attempt === attemptsMax || !isDuplicate(error)) throw error
    }
  }
}
