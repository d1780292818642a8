import type { Address } from 'viem'
import { createGas } from '../../db/gas'
import type { Db } from '../../db/open'
import { createPayeeGas } from '../../db/payee-gas'
import type { NetworkConfig } from '../config/Config'
import type * as Network from '../protocol/Network'

/** One payee may use one part in so many of the facilitator's daily gas. */
const parts = 4n

/** What the gas of the day was spent for, by payee. */
export type Payees = {
  /** Whether the share of one payee is spent. Reads one row of the database. */
  isSpent(network: Network.Id, payee: Address): boolean
  /**
   * Call it before sending. Call its result once, with the payment's id, when sending has ended.
   */
  begin(payment: PayeePayment): (id: string | undefined) => void
}

export type PayeePayment = {
  network: Network.Id
  payee: Address
  /** Id of the payment that is sent again. */
  known: string | undefined
}

export type PayeesOptions = {
  db: Db
  networks: readonly NetworkConfig[]
  /** Price of a unit of gas now, in wei. */
  priceOf: (network: Network.Id) => bigint
  now: () => number
}

/** Gas that counts for a settlement in progress: the highest limit of a payer without code. */
const openGas = 300_000n

type Day = { from: number; networks: Map<Network.Id, Part> }

/** Gas limits, in proportion to which the day's cost is divided. */
type Part = { total: number; byPayee: Map<Address, number> }

const dayMs = 86_400_000

/**
 * Divides what was spent in the day (UTC) among payees by the gas limits of what was sent for each.
 * Stores the day's costs in memory, filled from the database, and writes nothing. Settlements in
 * progress count at the present gas price, so that concurrent ones cannot exceed the share
 * together.
 */
export function createPayees({ db, networks, priceOf, now }: PayeesOptions): Payees {
  const { gasSpentOn } = createGas(db)
  const { gasSince, gasOf } = createPayeeGas(db)
  const budgets = new Map(networks.map(({ id, gasPerDayWei }) => [id, gasPerDayWei.facilitator]))
  let day: Day | undefined
  const underWay = new Map<string, number>()

  /** Filled at its first use: only an open facilitator needs it. */
  function today(): Day {
    const at = now()
    const from = at - (at % dayMs)
    if (day?.from === from) return day
    day = { from, networks: new Map() }
    for (const { network, payee, gas } of gasSince(from)) add(day, network, payee, gas)
    return day
  }

  return {
    isSpent(network, payee) {
      const part = today().networks.get(network)
      const open = BigInt(underWay.get(`${network} ${payee}`) ?? 0)
      // A payment of yesterday that is requested again has no gas in today's parts.
      const gas = BigInt(part?.byPayee.get(payee) ?? 0)
      if (gas + open === 0n) return false
      const total = BigInt(part?.total || 1)
      const spentWei = gasSpentOn(network, 'facilitator', now()) * gas
      const openWei = open * openGas * priceOf(network)
      const budgetWei = budgets.get(network) ?? 0n
      return (spentWei + openWei * total) * parts >= budgetWei * total
    },
    begin({ network, payee, known }) {
      // When it is filled after this point, it already includes this payment.
      const filled = day
      const before = known === undefined || filled === undefined ? 0 : gasOf(known)
      const key = `${network} ${payee}`
      underWay.set(key, (underWay.get(key) ?? 0) + 1)
      return (id) => {
        const left = (underWay.get(key) ?? 0) - 1
        if (left > 0) underWay.set(key, left)
        else underWay.delete(key)
        if (filled && id !== undefined) add(filled, network, payee, gasOf(id) - before)
      }
    },
  }
}

function add({ networks }: Day, network: Network.Id, payee: Address, gas: number): void {
  const part = networks.get(network) ?? { total: 0, byPayee: new Map() }
  part.total += gas
  part.byPayee.set(payee, (part.byPayee.get(payee) ?? 0) + gas)
  networks.set(network, part)
}
