import type * as Network from '../../src/protocol/Network'
import { dayMs } from '../../src/protocol/Time'
import type { GasTotals } from '../Ledger'
import type { GasProduct } from '../schema'
import type { Reader } from './reader'
import { refresh } from './refresh'

/** The sums of a day. */
export type GasSum = { wei: bigint; wastedWei: bigint }

/** A sum that a commit of this gateway has made. */
type NewSum = { network: Network.Id; product: GasProduct; day: string; sum: GasSum }

/** The totals in memory, which other gateways change in the database. */
export type Gas = {
  totals: GasTotals
  /** Takes over what a commit has returned. */
  note(added: NewSum): void
  /** Ends the timer. */
  close(): void
}

const read = `SELECT network, product, day, wei::text AS wei, wasted_wei::text AS wasted
  FROM gas_spent WHERE day = ANY($1::text[])`

type Row = { network: Network.Id; product: GasProduct; day: string; wei: string; wasted: string }

/** Loads the totals of this day and the one before, and reads them again once a second. */
export async function startGas(reader: Pick<Reader, 'all'>, now: () => number): Promise<Gas> {
  let sums = new Map<string, GasSum>()
  const note = ({ network, product, day, sum }: NewSum) => {
    const key = keyOf(network, product, day)
    const known = sums.get(key)
    // Sums only grow: a read that began before a commit must not undo it.
    sums.set(key, {
      wei: larger(known?.wei, sum.wei),
      wastedWei: larger(known?.wastedWei, sum.wastedWei),
    })
  }
  const load = async () => {
    const days = [dayOf(now() - dayMs), dayOf(now())]
    for (const { wei, wasted, ...of } of await reader.all<Row>(read, [days])) {
      note({ ...of, sum: { wei: BigInt(wei), wastedWei: BigInt(wasted) } })
    }
    sums = new Map([...sums].filter(([key]) => days.some((day) => key.endsWith(day))))
  }
  await load()
  const close = refresh(load)
  const sumOn = (network: Network.Id, product: GasProduct, at: number) =>
    sums.get(keyOf(network, product, dayOf(at)))
  return {
    totals: {
      spentOn: (network, product, at) => sumOn(network, product, at)?.wei ?? 0n,
      wastedOn: (network, product, at) => sumOn(network, product, at)?.wastedWei ?? 0n,
    },
    note,
    close,
  }
}

/** UTC day: `2026-11-20`. */
export function dayOf(at: number): string {
  return new Date(at).toISOString().slice(0, 10)
}

function keyOf(network: Network.Id, product: GasProduct, day: string): string {
  return `${network} ${product} ${day}`
}

function larger(one: bigint | undefined, other: bigint): bigint {
  return one !== undefined && one > other ? one : other
}
