import type { Address } from 'viem'
import { createCarried } from '../../db/carried'
import { createGas } from '../../db/gas'
import type { Db } from '../../db/open'
import type { NetworkConfig } from '../config/Config'
import type * as Network from '../protocol/Network'

/** One payee may have one part in so many of the facilitator's daily gas. */
const parts = 4n

/** What the gas of the day was spent for, by payee. */
export type Payees = {
  /** Whether the share of one payee is spent. Reads the database, one row. */
  isSpent(network: Network.Id, payee: Address): boolean
  /** Call before something is sent; what it gives, if anything, when that is over, with the payment's id. */
  begin(payment: Begun): ((id: string | undefined) => void) | undefined
}

export type Begun = {
  network: Network.Id
  payee: Address
  /** Id of the payment that is sent again. */
  known: string | undefined
}

export type PayeesOptions = { db: Db; networks: readonly NetworkConfig[]; now: () => number }

type Day = { from: number; networks: Map<Network.Id, Part> }

/** Gas limits, by which the day's cost is divided. */
type Part = { total: number; byPayee: Map<Address, number> }

const dayMs = 86_400_000

/**
 * Divides what was spent in the day (UTC) among payees by the gas limits of what was sent for each.
 * Nothing is written: memory holds what the database says of the day, and is filled from it.
 */
export function createPayees({ db, networks, now }: PayeesOptions): Payees {
  const { gasSpentOn } = createGas(db)
  const { carriedSince, gasOf } = createCarried(db)
  const budgets = new Map(networks.map(({ id, gasPerDayWei }) => [id, gasPerDayWei.facilitator]))
  let day: Day | undefined

  /** Filled when it is first asked for: a facilitator that is not open never does. */
  function today(): Day {
    const at = now()
    const from = at - (at % dayMs)
    if (day?.from === from) return day
    day = { from, networks: new Map() }
    for (const { network, payee, gas } of carriedSince(from)) add(day, network, payee, gas)
    return day
  }

  return {
    isSpent(network, payee) {
      const part = today().networks.get(network)
      const gas = part?.byPayee.get(payee)
      // Of a payment of yesterday that is asked for again, today knows nothing.
      if (part === undefined || !gas) return false
      const spentWei = gasSpentOn(network, 'facilitator', now())
      const budgetWei = budgets.get(network) ?? 0n
      return spentWei * BigInt(gas) * parts >= budgetWei * BigInt(part.total)
    },
    begin({ network, payee, known }) {
      // Filled later, it holds this one.
      const filled = day
      if (filled === undefined) return undefined
      const before = known === undefined ? 0 : gasOf(known)
      return (id) => {
        if (id !== undefined) add(filled, network, payee, gasOf(id) - before)
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
