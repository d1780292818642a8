import type { Hex } from 'viem'
import { RpcFault } from '../../chain/client'
import * as Token from '../../chain/token'
import * as Abi from '../../protocol/Abi'
import { zero } from '../../protocol/Address'
import type { Asset } from '../../protocol/Asset'
import * as Channel from '../../protocol/Channel'
import * as ChannelPayload from '../../protocol/ChannelPayload'
import * as Crypto from '../../protocol/Crypto'
import * as Explanation from '../../protocol/Explanation'
import { permit2Address } from '../../protocol/Permit'
import { type Fault, fault } from '../../protocol/Problem'
import { wrapperIn } from '../../protocol/Transfer'
import { acceptsSignature, read, type SignedDigest } from '../read/reads'
import { hasCode, isSpentGas } from '../read/simulate'
import type { Job } from '../send/Job'
import type { ChainState } from '../state/state'
import { pause } from '../state/wait'

/*
 * What a buyer presents of a channel, against the chain: for this gateway and for other servers, in the order
 * of the reference facilitator. All throw RpcFault or RpcError.
 */

/** `signature`: of the voucher. */
type Signed = { voucher: Channel.Voucher; signature: Hex }

type WithDeposit = Channel.Voucher & { deposit: Channel.Deposit }

/** What has a voucher with a deposit. */
export type Depositing<T> = T & { voucher: WithDeposit }

export function isDepositing<T extends { voucher: Channel.Voucher }>(
  presented: T,
): presented is Depositing<T> {
  return presented.voucher.deposit !== undefined
}

/** By the nonce of the deposit, which the chain takes once. */
export function depositKey({ channelId, deposit: { by } }: WithDeposit): string {
  return `${channelId}:${by.method === 'permit2' ? by.nonce : by.salt}`
}

type DepositTerms = {
  /** The domain in which its payer has signed it. */
  eip712: Asset['eip712']
  /** What is wrong with the permit beside it. */
  permitFault?: Fault | undefined
}

export type Checked = { state: Channel.OnChain }
export type Sendable = Checked & { call: DepositCall }

export type DepositCall = Channel.Call & Required<Pick<Job, 'runsCode'>>

/** Whether a deposit can be sent now, and covers its voucher. `call` sends it. */
export async function checkDeposit(
  chain: ChainState,
  presented: Depositing<Signed>,
  { eip712, permitFault }: DepositTerms,
): Promise<Sendable | Fault> {
  const { id: network, asset, chainId } = chain.network
  const { channelId, config, deposit } = presented.voucher
  const { payer: wallet, token } = config
  const { amountAtomic, by } = deposit
  const wrapper = by.method === 'eip3009' ? wrapperIn(by.signature) : undefined
  const signature = wrapper?.signature ?? by.signature
  const call = Channel.depositCall(config, { amountAtomic, by: { ...by, signature } })
  const funds = [Token.balanceOf(token, wallet), Token.allowance(token, wallet, permit2Address)]
  const [found, runsCode] = await Promise.all([
    readState(chain, channelId, [...funds, call]).catch(ignoreSpentGas),
    hasCode(chain, wallet),
  ])
  const [balance, allowance, sent] = found?.results ?? []
  const digest = ChannelPayload.depositDigest({ config, chainId }, deposit, { eip712 })
  const signed = { wallet, digest, signature }
  // Nothing is asked about the key of a payer whose deposit passes.
  const isPlain = wrapper === undefined && sent !== undefined && isKeySigned(signed)
  if (!isPlain) {
    if (wrapper !== undefined && !runsCode) {
      const detail = `The wallet ${wallet} is not deployed, and no factory is called.`
      return fault('invalid_batch_settlement_evm_eip6492_factory_not_allowed', detail)
    }
    if (!(await isSigned(chain, signed, runsCode))) {
      const detail = `The payer ${wallet} has not signed the deposit.`
      return by.method === 'eip3009'
        ? fault('invalid_batch_settlement_evm_receive_authorization_signature', detail)
        : fault('invalid_batch_settlement_evm_permit2_invalid_signature', detail)
    }
  }
  if (permitFault !== undefined) return permitFault
  if (found === undefined) return depositFails
  const moving = { payer: wallet, network, asset: token, amountAtomic }
  const approved = uintOf(allowance)
  const isApproved = by.method === 'eip3009' || by.permit2612 !== undefined
  if (!isApproved && approved < amountAtomic) {
    const detail = Explanation.lowAllowance(moving, approved, asset)
    return fault('invalid_batch_settlement_evm_permit2_allowance_required', detail)
  }
  if (!(await isVoucherSigned(chain, presented))) return otherVoucher
  const holds = uintOf(balance)
  if (holds < amountAtomic) {
    const detail = Explanation.lowBalance(moving, holds, asset)
    return fault('invalid_batch_settlement_evm_insufficient_balance', detail)
  }
  const { state } = found
  const uncovered = refuseCover(presented.voucher, state, amountAtomic)
  return uncovered ?? (sent === undefined ? depositFails : { state, call: { ...call, runsCode } })
}

export const depositFails = fault(
  'invalid_batch_settlement_evm_deposit_simulation_failed',
  'The deposit fails in simulation: its authorization may be used or cancelled.',
)

function uintOf(result: Hex | undefined): bigint {
  return (result && Abi.uintAt(result.slice(2))) ?? 0n
}

/** Whether a channel covers a voucher, in a block or later. */
export async function checkVoucher(
  chain: ChainState,
  presented: Signed,
  block: bigint,
): Promise<Checked | Fault> {
  if (!(await isVoucherSigned(chain, presented))) return otherVoucher
  const state = await readStateSince(chain, presented.voucher.channelId, block)
  return refuseCover(presented.voucher, state, 0n) ?? { state }
}

function refuseCover(
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
  const detail = `${claimedAtomic} atomic units were claimed before.`
  return fault('invalid_batch_settlement_evm_cumulative_below_claimed', detail)
}

const otherVoucher = fault(
  'invalid_batch_settlement_evm_voucher_signature',
  'The voucher is not signed by channelConfig.payerAuthorizer, or by the payer where that is zero.',
)

/**
 * Whether a claim by the voucher would be accepted. A wallet that signs for itself may change its mind
 * before the claim, which is the risk of the resource server that takes such vouchers.
 */
async function isVoucherSigned(
  chain: ChainState,
  { voucher, signature }: Signed,
): Promise<boolean> {
  const { channelId, config, maxAtomic } = voucher
  const { payerAuthorizer, payer } = config
  const digest = Channel.voucherDigest(chain.network.chainId, channelId, maxAtomic)
  if (payerAuthorizer !== zero) return isKeySigned({ wallet: payerAuthorizer, digest, signature })
  // The contract unwraps nothing.
  const isWrapped = wrapperIn(signature) !== undefined
  if (isWrapped) return false
  return isSigned(chain, { wallet: payer, digest, signature }, await hasCode(chain, payer))
}

/** By the key of an account without code, else as its code decides, as contracts check it. */
async function isSigned(
  chain: ChainState,
  signed: SignedDigest,
  isContract: boolean,
): Promise<boolean> {
  return isContract ? acceptsSignature(chain, signed) : isKeySigned(signed)
}

function isKeySigned({ wallet, digest, signature }: SignedDigest): boolean {
  return Crypto.isCanonical(signature) && Crypto.recover(digest, signature) === wallet
}

/** A channel and the results of further calls, in one block. */
async function readState(chain: ChainState, id: Hex, calls: readonly Channel.Call[] = []) {
  const own = Channel.stateCalls(id)
  const { blockNumber, results } = await read(chain, [...own, ...calls])
  const state = Channel.parseState(results)
  if (state === undefined) throw new RpcFault('the state of a channel cannot be read')
  return { state, blockNumber, results: results.slice(own.length) }
}

/** Longest wait for a node that is behind, ms. */
const behindMs = 2_000

/** A channel in a block or later. */
export async function readStateSince(
  chain: ChainState,
  id: Hex,
  block: bigint,
): Promise<Channel.OnChain> {
  const signal = AbortSignal.timeout(behindMs)
  for (;;) {
    const { state, blockNumber } = await readState(chain, id)
    if (blockNumber >= block) return state
    if (signal.aborted) throw new RpcFault('the node is behind the receipt')
    await pause(100, signal)
  }
}

/** Of a read in which the code of a stranger has used all of its gas. */
function ignoreSpentGas(error: unknown): undefined {
  if (!(error instanceof RpcFault) || !isSpentGas(error.cause)) throw error
}
