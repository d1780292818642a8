import type * as Network from '../../src/protocol/Network'
import { dayMs, dayOf } from '../../src/protocol/Time'
import { apartMs, type FailureLedger, type GasTotals } from '../Ledger'
import type { GasProduct } from '../schema'
import { repeat } from './commits'
import type { Parts } from './parts'
import type { Reader } from './reader'

/** How often what other gateways change is read again, ms. While the database is away, the last read counts. */
const refreshMs = 1_000

/** The sums of a day. */
export type GasSum = { wei: bigint; wastedWei: bigint }

/** A sum that a commit of this gateway has made. */
type NewSum = { network: Network.Id; product: GasProduct; day: string; sum: GasSum }

export type Gas = Awaited<ReturnType<typeof startGas>>

const readSums = `SELECT network, product, day, wei::text AS wei, wasted_wei::text AS wasted
  FROM gas_spent WHERE day = ANY($1::text[])`

type SumRow = { network: Network.Id; product: GasProduct; day: string; wei: string; wasted: string }

/** Loads the totals of this day and the one before, and reads them again once a second. */
export async function startGas(reader: Pick<Reader, 'all'>, now: () => number) {
  let sums = new Map<string, GasSum>()
  /** Takes over what a commit has returned. */
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
    for (const { wei, wasted, ...of } of await reader.all<SumRow>(readSums, [days])) {
      note({ ...of, sum: { wei: BigInt(wei), wastedWei: BigInt(wasted) } })
    }
    sums = new Map([...sums].filter(([key]) => days.some((day) => key.endsWith(day))))
  }
  await load()
  const close = repeat(refreshMs, load)
  const sumOn = (network: Network.Id, product: GasProduct, at: number) =>
    sums.get(keyOf(network, product, dayOf(at)))
  const totals: GasTotals = {
    spentOn: (network, product, at) => sumOn(network, product, at)?.wei ?? 0n,
    wastedOn: (network, product, at) => sumOn(network, product, at)?.wastedWei ?? 0n,
  }
  return { totals, note, close }
}

function keyOf(network: Network.Id, product: GasProduct, day: string): string {
  return `${network} ${product} ${day}`
}

function larger(one: bigint | undefined, other: bigint): bigint {
  return one !== undefined && one > other ? one : other
}

type FailureRow = { key: string; at: number }

/** Each has cost a failed transaction, so the gas budget bounds their number. */
const rowsMax = 10_000
const readFailures = `SELECT key, full_at AS at FROM payer_failures WHERE full_at > $1
  ORDER BY full_at DESC LIMIT ${rowsMax}`

/** Reads the failures that all gateways have recorded, and reads them again once a second. */
export async function startFailures(
  { commits, reader }: Pick<Parts, 'commits' | 'reader'>,
  now: () => number,
) {
  const fullAt = new Map<string, number>()
  // A read that began before a commit must not undo it, and what has expired is of no use.
  const note = (key: string, at: number) => void fullAt.set(key, Math.max(fullAt.get(key) ?? 0, at))
  const load = async () => {
    const rows = await reader.all<FailureRow>(readFailures, [now()])
    for (const [key, at] of fullAt) if (at <= now()) fullAt.delete(key)
    for (const { key, at } of rows) note(key, at)
  }
  await load()
  const close = repeat(refreshMs, load)
  const ledger: FailureLedger = {
    fullAt: (key) => fullAt.get(key.toLowerCase()) ?? 0,
    async add(failures, windowMs) {
      const rows = failures.map(({ key, ms }) => ({ key: key.toLowerCase(), ms: Math.ceil(ms) }))
      const sums = await commits.addSoon({
        call: 'add_failures',
        input: { failures: rows, window: windowMs, apart: apartMs, at: now() },
        key: `failures:${rows[0]?.key}`,
        read: (value) => value as Record<string, number>,
      })
      for (const [key, at] of Object.entries(sums)) note(key, at)
    },
  }
  return { ledger, close }
}
