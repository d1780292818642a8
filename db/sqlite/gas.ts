import type * as Network from '../../src/protocol/Network'
import { dayMs } from '../../src/protocol/Time'
import { type GasProduct, gasSpent } from '../schema'
import type { Db } from './open'
import { insertInto, statement } from './statement'
import { onRollback } from './write'

type Spent = {
  wei: bigint
  /** The part that failed payments of payers with code cost. */
  wastedWei: bigint
}

const nothing: Spent = { wei: 0n, wastedWei: 0n }

/** The newest sums, because every 402 reads the budget. */
const kept = new WeakMap<Db, Known>()

type Known = Map<Network.Id, Partial<Record<GasProduct, { day: number; spent: Spent }>>>

/** Cost of transactions, by product and UTC day. Make changes inside `write`. */
export function createGas(db: Db) {
  const known: Known = kept.get(db) ?? new Map()
  if (!kept.has(db)) onRollback(db, () => known.clear())
  kept.set(db, known)
  const select = statement<{ wei: string; wasted: string }>(
    db,
    `SELECT wei, wasted_wei AS wasted FROM gas_spent
     WHERE network = $network AND product = $product AND day = $day`,
  )
  const put = insertInto(
    db,
    gasSpent,
    `ON CONFLICT (network, product, day)
     DO UPDATE SET wei = excluded.wei, wasted_wei = excluded.wasted_wei`,
  )

  function read(network: Network.Id, product: GasProduct, day: string): Spent {
    const row = select().get({ network, product, day })
    return row ? { wei: BigInt(row.wei), wastedWei: BigInt(row.wasted) } : nothing
  }

  function spentOn(network: Network.Id, product: GasProduct, at: number): Spent {
    const before = known.get(network)?.[product]
    if (before?.day === Math.floor(at / dayMs)) return before.spent
    const spent = read(network, product, textOf(at))
    keep(network, product, at, spent)
    return spent
  }

  function keep(network: Network.Id, product: GasProduct, at: number, spent: Spent): void {
    const ofNetwork = known.get(network) ?? {}
    ofNetwork[product] = { day: Math.floor(at / dayMs), spent }
    known.set(network, ofNetwork)
  }

  function add(network: Network.Id, product: GasProduct, at: number, more: Spent): Spent {
    const day = textOf(at)
    const before = read(network, product, day)
    const spent = { wei: before.wei + more.wei, wastedWei: before.wastedWei + more.wastedWei }
    put({ network, product, day, ...spent })
    // Keeps the sum for the next payment, which waits for enough reads already.
    keep(network, product, at, spent)
    return before
  }

  return {
    gasSpentOn: (network: Network.Id, product: GasProduct, at: number): bigint =>
      spentOn(network, product, at).wei,
    /** The part that failed payments of payers with code cost. */
    gasWastedOn: (network: Network.Id, product: GasProduct, at: number): bigint =>
      spentOn(network, product, at).wastedWei,
    /** Returns the sum of the day before. */
    addGas: (network: Network.Id, product: GasProduct, at: number, wei: bigint): bigint =>
      add(network, product, at, { wei, wastedWei: 0n }).wei,
    addWasted: (network: Network.Id, product: GasProduct, at: number, wei: bigint): void =>
      void add(network, product, at, { wei: 0n, wastedWei: wei }),
  }
}

/** `2026-11-20`. */
function textOf(at: number): string {
  return new Date(at).toISOString().slice(0, 10)
}
