import type { Address } from 'viem'
import type { Log } from '../log'
import type * as Network from '../protocol/Network'
import type { ApprovalRefusal } from '../settlement/sponsorship'
import { approvalLimits, approvesMissingMax, createClients } from './clients'
import { idle } from './facts'
import * as Grant from './Grant'
import type { Sponsored, SponsorSettlement } from './ledger'

/**
 * Which payers were funded for an approve that has not arrived. A payer can use its account nonce
 * otherwise, by a delegation (EIP-7702) that another account sends, and keep the coin. So what is
 * funded without an approve is limited by client, network of clients, and for all.
 */
export type Arrivals = {
  /** Counts a payer that is to be funded. Throws RpcFault or RpcError. */
  reserve(
    network: Sponsored,
    client: string,
    payer: Address,
  ): Promise<{ kind: 'reserved'; release: () => void } | ApprovalRefusal>
  /** The approve of the payer is on the chain. */
  arrived(network: Network.Id, payer: Address): void
}

export type ArrivalsOptions = {
  settlement: SponsorSettlement
  networks: readonly Sponsored[]
  /** Whether an approve of the payer is being sent. */
  isUnderWay(network: Network.Id, payer: Address): boolean
  now: () => number
  log: Log
}

/** Time between two reads of a network, ms. */
const lookMs = 1_000

export function createArrivals(options: ArrivalsOptions): Arrivals {
  const { settlement, networks, isUnderWay, now, log } = options
  const tracked = new Map(
    networks.map(({ id }) => [
      id,
      { clients: createClients(approvalLimits), readAt: 0, loggedOn: 0 },
    ]),
  )
  return {
    async reserve(network, client, payer) {
      const { id } = network
      const known = tracked.get(id)
      if (known === undefined) throw new Error(`${id} is not sponsored`)
      const { clients } = known
      const day = Grant.dayOf(now())
      const missing = clients.unused(client, day) as Address[]
      if (missing.length > 0 && Math.abs(now() - known.readAt) >= lookMs) {
        known.readAt = now()
        const still = new Set(await idle(settlement, network, missing))
        clients.settle(missing.filter((each) => !still.has(each)))
      }
      if (clients.take(client, day, payer)) {
        return { kind: 'reserved', release: () => clients.releaseReservation(client, day, payer) }
      }
      const left = new Set(clients.unused(client, day) as Address[])
      if ([...left].some((each) => isUnderWay(id, each))) return busy
      if (left.size >= approvesMissingMax && known.loggedOn !== day) {
        known.loggedOn = day
        log('approves-missing', { network: id, payers: left.size })
      }
      return closed
    },
    arrived: (network, payer) => tracked.get(network)?.clients.settle([payer]),
  }
}

const busy: ApprovalRefusal = {
  kind: 'unavailable',
  detail: 'Too many approves are under way; try again.',
  retryAfterSeconds: 2,
}

/** Not a temporary fault: the payer should choose another way now. */
const closed: ApprovalRefusal = {
  kind: 'refused',
  code: 'erc20_approval_budget_spent',
  detail: 'Approves that were funded did not arrive, so none is funded now; request a grant.',
}
