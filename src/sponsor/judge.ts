import type { Address } from 'viem'
import type { GrantRow } from '../../db/schema'
import type { Code } from '../protocol/Problem'
import { approveCall, estimateApprove, readFacts, tipOf } from './facts'
import * as Grant from './Grant'
import type { Sponsored, SponsorSettlement } from './ledger'

/** The grant for an address, and the approve that it can sign with it. */
export type Judged =
  | { kind: 'amount'; wei: bigint; approve: Grant.Approve }
  | { kind: 'too-expensive' }
  | { kind: 'refused'; code: Code; detail: string; approve?: Grant.Approve | undefined }

/** Decides on an address that was never sponsored. Throws RpcFault or RpcError. */
export async function judge(
  settlement: SponsorSettlement,
  network: Sponsored,
  address: Address,
): Promise<Judged> {
  const seen = await survey(settlement, network, address)
  if (seen.kind === 'refused') return seen
  const { facts, price } = seen
  const amount = Grant.amountOf(facts.balanceWei, price, capOf(network))
  if (amount.kind === 'has-gas') {
    const detail = 'The address can pay for an approve: send it from the address.'
    return { kind: 'refused', code: 'has-gas', detail, approve: approveOf(network, seen, 0n) }
  }
  if (amount.kind === 'too-expensive') return amount
  return given(network, seen, amount.wei)
}

/**
 * The only top-up of a grant, or the reason against it. While the address has not approved, the
 * answer has the approve that the balance pays for. Throws RpcFault or RpcError.
 */
export async function judgeAgain(
  settlement: SponsorSettlement,
  network: Sponsored,
  row: GrantRow,
  isTopped: boolean,
): Promise<Judged> {
  const seen = await survey(settlement, network, row.address)
  if (seen.kind === 'refused') return seen
  const { facts, price } = seen
  const cap = capOf(network)
  const wei = isTopped
    ? undefined
    : Grant.topUpOf(facts.balanceWei, price, { amountWei: row.amountWei, cap })
  if (wei !== undefined) return given(network, seen, wei)
  const approve = approveOf(network, seen, 0n)
  const detail = 'The address was sponsored before; it happens once. Send the approve from it.'
  return { kind: 'refused', code: 'already-sponsored', detail, approve }
}

type Survey = { kind: 'good'; facts: Grant.Facts; price: Grant.Price }

async function survey(
  settlement: SponsorSettlement,
  network: Sponsored,
  address: Address,
): Promise<Survey | Extract<Judged, { kind: 'refused' }>> {
  const { facts, baseFeeWei } = await readFacts(settlement, network, address)
  if (facts.code === 'eoa' && facts.allowanceAtomic > 0n) {
    const detail = 'The address has approved Permit2 already: pay now.'
    return { kind: 'refused', code: 'already-approved', detail }
  }
  const refusal = Grant.refusalOf(facts, network.asset, network.sponsor)
  if (refusal) return { kind: 'refused', ...refusal }
  const [gas, tipWei] = await Promise.all([
    estimateApprove(settlement, network, address),
    tipOf(settlement, network, baseFeeWei),
  ])
  if (gas === undefined) {
    const detail = 'The token refuses this address: pay from another.'
    return { kind: 'refused', code: 'approve-fails', detail }
  }
  return { kind: 'good', facts, price: { gas, baseFeeWei, tipWei } }
}

function given(network: Sponsored, seen: Survey, wei: bigint): Judged {
  const approve = approveOf(network, seen, wei)
  return approve ? { kind: 'amount', wei, approve } : { kind: 'too-expensive' }
}

function approveOf(
  { asset, chainId }: Sponsored,
  { facts, price }: Survey,
  grantWei: bigint,
): Grant.Approve | undefined {
  const { nonce, balanceWei } = facts
  const has = { nonce, balanceWei: balanceWei + grantWei }
  return Grant.approveOf(approveCall(asset.address), chainId, price, has)
}

function capOf({ sponsor, asset }: Sponsored): bigint {
  return Grant.capWei(sponsor, asset.decimals)
}
