import * as ChannelFacilitation from '../protocol/ChannelFacilitation'
import type { Operation } from '../protocol/Facilitation'
import type * as Network from '../protocol/Network'
import { type Fault, isFault } from '../protocol/Problem'
import * as Sponsoring from '../protocol/Sponsoring'
import {
  type Checked,
  type Depositing,
  depositKey,
  isDepositing,
  type Sendable,
} from '../settlement/channels/check'
import * as Refusals from '../settlement/read/refusals'
import type { Settlement } from '../settlement/settlement'
import type { Refusal } from './answers'
import * as Policy from './Policy'

/** What a buyer presents of a payment channel to another server: the checks of `/verify`. */

export type CheckOptions = {
  settlement: Settlement
  policy: Policy.Policy
  now: () => number
}

/** A call about a channel, on a network of the configuration. */
export type ChannelCall = ChannelFacilitation.ChannelRequest & {
  operation: Operation
  network: Network.Network
}

type Presented = ChannelFacilitation.Presented

/** Checks what a buyer presented, in the order of the reference facilitator. Throws RpcFault or RpcError. */
export async function examine(
  options: CheckOptions,
  call: ChannelCall,
  presented: Presented,
): Promise<Checked | Refusal> {
  const { channels } = options.settlement
  if (!isDepositing(presented)) {
    const early = refuseEarly(options, call, presented)
    return early ?? channels.checkVoucher(call.network.id, presented, 0n)
  }
  const examined = await examineDeposit(options, call, presented)
  if ('state' in examined) return examined
  // Read after the simulation: a deposit that the chain has taken by then is in the state, and counts once.
  const sent = await channels.attemptOf(nameOf(presented))
  const arrived = sent?.row && (await examineSent(options, call, presented, 0n))
  return arrived && 'state' in arrived ? arrived : examined
}

/**
 * Whether a voucher beside a deposit that was sent is covered, in a block or later. What was sent under an
 * earlier configuration costs no more gas. Throws as `examine`.
 */
export async function examineSent(
  { settlement }: CheckOptions,
  call: ChannelCall,
  presented: Presented,
  block: bigint,
): Promise<Checked | Refusal> {
  const { id, chainId } = call.network
  const other = ChannelFacilitation.checkChannel(call, presented, chainId)
  return other ?? settlement.channels.checkVoucher(id, presented, block)
}

/** Checks a deposit that the chain has not taken yet. Throws as `examine`. */
export async function examineDeposit(
  options: CheckOptions,
  call: ChannelCall,
  presented: Depositing<Presented>,
): Promise<Sendable | Refusal> {
  const { settlement, now } = options
  const { network, requirements, extensions } = call
  const { voucher } = presented
  const refused = refuseEarly(options, call, presented) ?? refuseNow(settlement, network.id)
  if (refused !== undefined) return refused
  const { name = '', version = '' } = requirements
  const eip712 = { name, version }
  const { payer, token: asset } = voucher.config
  const { by, amountAtomic } = voucher.deposit
  const transfer = { method: by.method, payer, asset, amountAtomic, voucher }
  const sponsored = Sponsoring.read(extensions, transfer, { now: now(), takesApprovals: false })
  const { checkDeposit } = settlement.channels
  if (isFault(sponsored))
    return checkDeposit(network.id, presented, { eip712, permitFault: sponsored })
  const whole = Sponsoring.withPermit(presented, sponsored.permit2612)
  return checkDeposit(network.id, whole, { eip712 })
}

/** The refusals that need no chain. */
function refuseEarly(
  { policy, now }: CheckOptions,
  call: ChannelCall,
  presented: Presented,
): Fault | undefined {
  const { network, requirements } = call
  const { config, deposit } = presented.voucher
  return (
    Policy.checkPayee(policy, { ...requirements, payer: config.payer }) ??
    (deposit && Policy.checkAmount(policy, deposit.amountAtomic)) ??
    ChannelFacilitation.checkTerms(call, presented, { chainId: network.chainId, now: now() })
  )
}

/** Why nothing new is sent on a network now. */
export function refuseNow(
  settlement: Settlement,
  network: Network.Id,
): Refusals.Unavailable | undefined {
  if (!settlement.isReady(network)) {
    return Refusals.later('The network cannot settle now; try again.', 5)
  }
  return settlement.hasBudget(network, 'facilitator') ? undefined : Refusals.budgetSpent
}

/** Calls for one deposit have the same name. */
export function nameOf({ voucher }: Depositing<Presented>): string {
  return `f-deposit:${depositKey(voucher)}`
}
