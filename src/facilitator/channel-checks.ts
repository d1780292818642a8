import type { Address, Hex } from 'viem'
import { RpcFault } from '../chain/client'
import { isHex } from '../chain/receipt'
import * as Token from '../chain/token'
import * as Abi from '../protocol/Abi'
import { zero } from '../protocol/Address'
import * as Channel from '../protocol/Channel'
import type { Presented } from '../protocol/ChannelFacilitation'
import * as ChannelFacilitation from '../protocol/ChannelFacilitation'
import * as ChannelPayload from '../protocol/ChannelPayload'
import * as Crypto from '../protocol/Crypto'
import type { Operation } from '../protocol/Facilitation'
import type * as Network from '../protocol/Network'
import * as Permit from '../protocol/Permit'
import { type Fault, fault, isFault } from '../protocol/Problem'
import * as Sponsoring from '../protocol/Sponsoring'
import { wrapperIn } from '../protocol/Transfer'
import * as Refusals from '../settlement/read/refusals'
import { isSpentGas } from '../settlement/read/simulate'
import type { JobEnd } from '../settlement/send/Job'
import type { Settlement } from '../settlement/settlement'
import * as Policy from './Policy'

/** What a buyer presents of a payment channel to another server: the checks of `/verify`, with the chain. */

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

export type Unavailable = Extract<JobEnd, { kind: 'unavailable' }>

/** Why a call is not answered with a success. */
export type Refusal = Fault | Unavailable

/** A channel and the results of further calls, in one block. Throws RpcFault. */
export async function readState(
  { settlement }: CheckOptions,
  network: Network.Id,
  id: Hex,
  calls: readonly Channel.Call[] = [],
) {
  const own = Channel.stateCalls(id)
  const { blockNumber, results } = await settlement.read(network, [...own, ...calls])
  const state = Channel.parseState(results)
  if (state === undefined) throw new RpcFault('the state of a channel cannot be read')
  return { state, blockNumber, results: results.slice(own.length) }
}

/** Checks what a buyer presented, in the order of the reference facilitator. Throws RpcFault. */
export async function examine(
  options: CheckOptions,
  call: ChannelCall,
  presented: Presented,
): Promise<Examined | Refusal> {
  const { network, requirements } = call
  const { config, deposit } = presented.voucher
  const { policy, now } = options
  const { attemptOf } = options.settlement.channels
  const sent = deposit && (await attemptOf(depositName(presented.voucher)))?.row?.state
  const isSent = sent !== undefined
  // What was sent under an earlier configuration costs no more gas.
  const refusal = isSent
    ? undefined
    : (Policy.checkPayee(policy, { ...requirements, payer: config.payer }) ??
      (deposit && Policy.checkAmount(policy, deposit.amountAtomic)))
  const checking = { chainId: network.chainId, now: now(), isSent }
  const early = refusal ?? ChannelFacilitation.checkTerms(call, presented, checking)
  if (early !== undefined) return early
  if (deposit && !isSent) return examineDeposit(options, call, presented, deposit)
  if (!(await isVoucherSigned(options, network, presented))) return otherVoucher
  const { state } = await readState(options, network.id, presented.voucher.channelId)
  const addedAtomic = sent === 'broadcast' ? (deposit?.amountAtomic ?? 0n) : 0n
  return checkVoucher(presented.voucher, state, addedAtomic) ?? { state }
}

/** `call`: what a deposit sends. */
type Examined = { state: Channel.OnChain; call?: Channel.Call }

async function examineDeposit(
  options: CheckOptions,
  call: ChannelCall,
  presented: Presented,
  asked: Channel.Deposit,
): Promise<Examined | Refusal> {
  const { network } = call
  const { channelId, config } = presented.voucher
  const unready = refuseNow(options, network.id)
  if (unready !== undefined) return unready
  const deposit = await readSigned(options, call, presented.voucher, asked)
  if (isFault(deposit)) return deposit
  const { amountAtomic, by } = deposit
  const sent = Channel.depositCall(config, deposit)
  const balanceCall = Token.balanceOf(config.token, config.payer)
  const allowanceCall = Token.allowance(config.token, config.payer, Permit.permit2Address)
  const calls = [balanceCall, allowanceCall, sent]
  const found = await unlessSpent(readState(options, network.id, channelId, calls))
  if (found === undefined) return depositFails
  const [balance, allowance, simulated] = found.results
  const isApproved = by.method === 'eip3009' || by.permit2612 !== undefined
  if (!isApproved && amountOf(allowance) < amountAtomic) {
    return fault(
      'invalid_batch_settlement_evm_permit2_allowance_required',
      'The payer has not approved Permit2 for the amount.',
    )
  }
  if (!(await isVoucherSigned(options, network, presented))) return otherVoucher
  if (amountOf(balance) < amountAtomic) {
    return fault(
      'invalid_batch_settlement_evm_insufficient_balance',
      `The payer holds ${amountOf(balance)} atomic units.`,
    )
  }
  const other = checkVoucher(presented.voucher, found.state, amountAtomic)
  return other ?? (simulated === undefined ? depositFails : { state: found.state, call: sent })
}

export const depositFails = fault(
  'invalid_batch_settlement_evm_deposit_simulation_failed',
  'The contracts refuse the deposit.',
)

function amountOf(result: Hex | undefined): bigint {
  return (result && Abi.uintAt(result.slice(2))) ?? 0n
}

/** The deposit as it is sent, once its payer has signed it. Throws RpcFault. */
async function readSigned(
  options: CheckOptions,
  { network, requirements, extensions }: ChannelCall,
  voucher: Channel.Voucher,
  { amountAtomic, by }: Channel.Deposit,
): Promise<Channel.Deposit | Fault> {
  const { id, chainId } = network
  const { config } = voucher
  const { payer: wallet, token: asset } = config
  const { name = '', version = '' } = requirements
  const wrapper = by.method === 'eip3009' ? wrapperIn(by.signature) : undefined
  if (wrapper !== undefined && !(await hasCode(options, id, wallet))) {
    const detail = `The wallet ${wallet} is not deployed, and no factory is called.`
    return fault('invalid_batch_settlement_evm_eip6492_factory_not_allowed', detail)
  }
  const signature = wrapper?.signature ?? by.signature
  const signed = { amountAtomic, by: { ...by, signature } }
  const domain = { eip712: { name, version } }
  const digest = ChannelPayload.depositDigest({ config, chainId }, signed, domain)
  if (!(await isSignedBy(options, id, { wallet, digest, signature }))) {
    const detail = `The payer ${wallet} has not signed the deposit.`
    return by.method === 'eip3009'
      ? fault('invalid_batch_settlement_evm_receive_authorization_signature', detail)
      : fault('invalid_batch_settlement_evm_permit2_invalid_signature', detail)
  }
  if (signed.by.method === 'eip3009') return signed
  const transfer = { method: 'permit2', payer: wallet, asset, amountAtomic, voucher } as const
  const reading = { now: options.now(), takesApprovals: false }
  const sponsored = Sponsoring.read(extensions, transfer, reading)
  if ('code' in sponsored) return sponsored
  const { permit2612 } = sponsored
  return permit2612 ? { amountAtomic, by: { ...signed.by, permit2612 } } : signed
}

/** Whether the channel covers a voucher, with what is being added to it. */
function checkVoucher(
  { kind, maxAtomic }: Channel.Voucher,
  { balanceAtomic, claimedAtomic }: Channel.OnChain,
  addedAtomic: bigint,
): Fault | undefined {
  const coveredAtomic = balanceAtomic + addedAtomic
  if (coveredAtomic === 0n)
    return fault('invalid_batch_settlement_evm_channel_not_found', 'The channel has no balance.')
  if (maxAtomic > coveredAtomic) {
    const detail = `The channel has ${coveredAtomic} atomic units, and the voucher is for ${maxAtomic}.`
    return fault('invalid_batch_settlement_evm_cumulative_exceeds_balance', detail)
  }
  if (kind === 'refund' ? maxAtomic >= claimedAtomic : maxAtomic > claimedAtomic) return undefined
  return fault(
    'invalid_batch_settlement_evm_cumulative_below_claimed',
    `${claimedAtomic} atomic units were claimed before.`,
  )
}

const otherVoucher = fault(
  'invalid_batch_settlement_evm_voucher_signature',
  'The voucher is not signed by channelConfig.payerAuthorizer, or by the payer where that is zero.',
)

/**
 * Whether a claim by the voucher would be accepted. A wallet that signs for itself may change its mind
 * before the claim, which is the risk of the resource server that takes such vouchers. Throws RpcFault.
 */
async function isVoucherSigned(
  options: CheckOptions,
  { id, chainId }: Network.Network,
  { voucher, signature }: Presented,
): Promise<boolean> {
  const { channelId, config, maxAtomic } = voucher
  const { payerAuthorizer, payer: wallet } = config
  const digest = Channel.voucherDigest(chainId, channelId, maxAtomic)
  if (payerAuthorizer === zero) {
    // The contract unwraps nothing.
    const isWrapped = wrapperIn(signature) !== undefined
    return !isWrapped && isSignedBy(options, id, { wallet, digest, signature })
  }
  return Crypto.isCanonical(signature) && Crypto.recover(digest, signature) === payerAuthorizer
}

async function hasCode(
  { settlement }: CheckOptions,
  network: Network.Id,
  address: Address,
): Promise<boolean> {
  const code = await settlement.rpc(network, 'eth_getCode', [address, 'latest'])
  if (!isHex(code)) throw new RpcFault('not a code')
  return code !== '0x'
}

/** By the key of an account without code, else as its code decides, as contracts check it. */
async function isSignedBy(
  options: CheckOptions,
  network: Network.Id,
  signed: { wallet: Address; digest: Uint8Array; signature: Hex },
): Promise<boolean> {
  const { wallet, digest, signature } = signed
  const isContract = await hasCode(options, network, wallet)
  if (isContract) return options.settlement.acceptsSignature(network, signed)
  return Crypto.isCanonical(signature) && Crypto.recover(digest, signature) === wallet
}

/** What a call of nodes reads; undefined where the code of a stranger has used all of its gas. */
export async function unlessSpent<T>(reading: Promise<T>): Promise<T | undefined> {
  try {
    return await reading
  } catch (error) {
    if (isSpentGas(error) || (error instanceof RpcFault && isSpentGas(error.cause)))
      return undefined
    throw error
  }
}

/** Why nothing new is sent on a network now. */
export function refuseNow(
  { settlement }: CheckOptions,
  network: Network.Id,
): Unavailable | undefined {
  if (!settlement.isReady(network)) {
    return Refusals.later('The network cannot settle now; try again.', 5)
  }
  if (settlement.hasBudget(network, 'facilitator')) return undefined
  return Refusals.later('The gas budget of today is spent; it starts again at 0:00 UTC.', 600)
}

/** By the nonce of the deposit, which the chain takes once. */
export function depositName({ channelId, deposit }: Channel.Voucher): string {
  const by = deposit?.by
  return `f-deposit:${channelId}:${by?.method === 'permit2' ? by.nonce : by?.salt}`
}
