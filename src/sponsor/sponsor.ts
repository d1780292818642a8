import type { Address } from 'viem'
import type { GrantLedger } from '../../db/GrantLedger'
import * as Multicall from '../chain/multicall'
import type { NetworkConfig } from '../config/Config'
import type { Log } from '../log'
import type * as Network from '../protocol/Network'
import * as Permit from '../protocol/Permit'
import type { ApprovalSponsor } from '../settlement/sponsorship'
import type { Meter } from '../settlement/state/metrics'
import { createApprovalSponsor } from './approval'
import { createGranting, type Granting } from './granting'
import { createLedger, type Ledger, type Sponsored, type SponsorSettlement } from './ledger'

export type Sponsor = {
  networks: readonly Network.Id[]
  granting: Granting
  /** Undefined when no network sponsors approvals. */
  approvals: ApprovalSponsor | undefined
  /** Networks whose budget of today is spent, for health. */
  spent: Ledger['spent']
}

export type SponsorOptions = {
  grants: GrantLedger
  settlement: SponsorSettlement
  networks: readonly NetworkConfig[]
  /** Accounts of ours. */
  accounts: readonly Address[]
  meter: Meter
  now: () => number
  log: Log
  /** Longest wait for a grant's confirmation, ms. */
  waitMs: () => number
}

/** Sponsoring of approves of Permit2: by request, and for signed approves. One ledger. */
export function createSponsor(options: SponsorOptions): Sponsor {
  const { grants, settlement, meter, now, log, waitMs } = options
  const networks = options.networks.filter(isSponsored)
  const ledger = createLedger({ grants, settlement, networks, now, log })
  const count = meter.gauge('sponsor_grants_today', 'Addresses sponsored on this UTC day.', [
    'network',
  ])
  const spent = meter.gauge('sponsor_spent_wei_today', 'Given on this UTC day, gas included.', [
    'network',
  ])
  meter.onRender(async () => {
    for (const { id: network } of networks) {
      const { grants: given, wei } = await ledger.tally(network)
      count.set(given, { network })
      spent.set(Number(wei), { network })
    }
  })
  const excluded = [
    ...options.accounts,
    Permit.permit2Address,
    Permit.proxyAddress,
    Multicall.multicallAddress,
    ...options.networks.map(({ asset }) => asset.address),
  ]
  return {
    networks: networks.map(({ id }) => id),
    granting: createGranting({ settlement, ledger, networks, excluded, meter, now, waitMs }),
    approvals:
      networks.length > 0
        ? createApprovalSponsor({ settlement, ledger, networks, meter, now, log })
        : undefined,
    spent: ledger.spent,
  }
}

/** Without payments by Permit2 there is nothing to sponsor. */
function isSponsored(network: NetworkConfig): network is Sponsored {
  return network.sponsor !== undefined && network.asset.transfer.includes('permit2')
}
