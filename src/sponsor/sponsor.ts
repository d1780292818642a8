import type { Address } from 'viem'
import * as Multicall from '../chain/multicall'
import type { NetworkConfig } from '../config/Config'
import type * as Network from '../protocol/Network'
import * as Permit from '../protocol/Permit'
import type { ApprovalSponsor } from '../settlement/sponsorship'
import type { Meter } from '../settlement/state/metrics'
import { createApprovalSponsor } from './approval'
import { createGranting, type Granting } from './granting'
import { type Sponsored, type SponsorLedger, spentOf, tallyOf } from './ledger'

export type Sponsor = {
  networks: readonly Network.Id[]
  granting: Granting
  /** Undefined when no network sponsors approvals. */
  approvals: ApprovalSponsor | undefined
  /** Networks whose budget of today is spent, for health. */
  spent: () => ReturnType<typeof spentOf>
}

type SponsorOptions = Omit<SponsorLedger, 'networks'> & {
  networks: readonly NetworkConfig[]
  /** Accounts of ours. */
  accounts: readonly Address[]
  meter: Meter
  /** Longest wait for a grant's confirmation, ms. */
  waitMs: () => number
}

/** Sponsoring of approves of Permit2: by request, and for signed approves. One ledger. */
export function createSponsor(options: SponsorOptions): Sponsor {
  const { meter, waitMs } = options
  const networks = options.networks.filter(isSponsored)
  const ledger = { ...options, networks }
  const label = ['network']
  const count = meter.gauge('sponsor_grants_today', 'Addresses sponsored on this UTC day.', label)
  const spent = meter.gauge(
    'sponsor_spent_wei_today',
    'Given on this UTC day, gas included.',
    label,
  )
  meter.onRender(async () => {
    for (const { id: network } of networks) {
      const { grants: given, wei } = await tallyOf(ledger, network)
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
    granting: createGranting({ ledger, excluded, meter, waitMs }),
    approvals: networks.length > 0 ? createApprovalSponsor({ ledger, meter }) : undefined,
    spent: () => spentOf(ledger),
  }
}

/** Without payments by Permit2 there is nothing to sponsor. */
function isSponsored(network: NetworkConfig): network is Sponsored {
  return network.sponsor !== undefined && network.asset.transfer.includes('permit2')
}
