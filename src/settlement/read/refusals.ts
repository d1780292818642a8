import { storageCode } from '../../../db/fault'
import { RpcError, RpcFault } from '../../chain/client'
import type { Head } from '../../chain/head'
import type { NetworkConfig } from '../../config/Config'
import type { Asset } from '../../protocol/Asset'
import * as Explanation from '../../protocol/Explanation'
import { signatureCodes, type Transfer } from '../../protocol/Transfer'
import type { Outcome, Reason } from '../send/Outcome'

/** Why a payment is not sent: an invalid payment, or a temporary fault. */
export type PaymentRefusal = Extract<Outcome, { kind: 'refused' | 'unavailable' }>

export type Unavailable = Extract<Outcome, { kind: 'unavailable' }>

/** A temporary refusal: the credential is unspent, and the same one may pass later. */
export function later(detail: string, retryAfterSeconds: number) {
  return { kind: 'unavailable' as const, detail, retryAfterSeconds }
}

/** A wallet that is not deployed yet: the relayer calls only the listed factories. */
export function refuseFactory({ payer, network }: Transfer): PaymentRefusal {
  const detail = `The wallet ${payer} is not deployed on ${network}: deploy it, or pay from another.`
  return refuse('eip6492_factory_not_allowed', detail)
}

/** Another transfer or a cancellation used the nonce of the authorization. */
export function refuseUsed(transfer: Transfer): PaymentRefusal {
  return refuse(usedReason(transfer), used)
}

/** The detail of `refuseUsed`. */
export const used = 'The nonce of the authorization is used: sign a new authorization.'

/**
 * Neither the payer's key nor a contract of the payer accepts the signature. `eip712`: the domain in
 * which it was checked.
 */
export function refuseSignature(transfer: Transfer, eip712: Asset['eip712']): PaymentRefusal {
  return refuse(signatureCodes[transfer.method], Explanation.otherSigner(transfer, eip712))
}

/** The reason code for a nonce that another transaction used, or another voucher of the channel. */
export function usedReason({ method }: Pick<Transfer, 'method'>): Reason {
  if (method === 'channel') return 'invalid_batch_settlement_evm_cumulative_amount_mismatch'
  return method === 'permit2' ? 'permit2_invalid_nonce' : 'invalid_exact_evm_nonce_already_used'
}

/** The reason code for a window that is over. */
export function expiredReason(transfer: Pick<Transfer, 'method'>): Reason {
  return transfer.method === 'permit2'
    ? 'permit2_deadline_expired'
    : 'invalid_exact_evm_payload_authorization_valid_before'
}

/** The refusal of a payer whose transactions failed on chain. */
export function lockedOut(retryAfterSeconds: number): PaymentRefusal {
  const detail =
    'Transactions of this payer failed on chain; nothing is charged now. Send it again after Retry-After.'
  return later(detail, retryAfterSeconds)
}

/** The refusal of a payer, or of an address, for which several answers failed and cost nothing. */
export function oftenUnpaid(retryAfterSeconds: number): PaymentRefusal {
  const detail =
    'Several answers of this payer or of its address failed and cost nothing: pay by exact, or send ' +
    'the same credential again after Retry-After.'
  return { ...later(detail, retryAfterSeconds), limit: 'upto_often_unpaid' }
}

/** The refusal of a ceiling that one payer may not have open beside what it has paid. */
export function creditExceeded(mostAtomic: bigint): PaymentRefusal {
  const detail =
    'The ceiling, with what failed within the last hour, is more than this payer has paid to the ' +
    `merchant and ${mostAtomic} atomic units above that: pay by exact. Each payment raises the limit.`
  return refuse('upto_credit_exceeded', detail)
}

/** The refusal of a payer that has not paid enough, after the losses of the merchant within a day. */
export const lossesSpent = refuse(
  'upto_losses_spent',
  'Today this merchant takes upto only for what a payer has paid to it before: pay by exact. Each ' +
    'payment raises the limit.',
)

/** Open ceilings of other payers may still be lost, and fill the limit of the merchant. */
export const newUnderWay = later(
  'Too many answers for payers that are new to this merchant are under way: pay by exact, or send ' +
    'the same credential again.',
  2,
)

/** Other payments of the payer go first; the same payment may pass later. */
export const underWay = later(
  'Other payments of this payer are under way; send the same credential again.',
  1,
)

/** The relayer that the payer's signature names is no longer configured. */
export const relayerGone = later(
  'The relayer that this authorization names is not in use: sign a fresh offer.',
  60,
)

/** The refusal of a payment whose turn did not come in time: nothing was written. */
export const busy = later('The network is busy; try again with the same credential.', 2)

/** The refusal of what costs gas, for the rest of a day. */
export const budgetSpent = later(
  'The gas budget of today is spent; it starts again at 0:00 UTC.',
  600,
)

/** The refusal while the database cannot be written: nothing is sent. */
export const unrecordable = later(
  'Payments cannot be recorded now; send the same credential again.',
  5,
)

/** The refusal for a network fault: the credential is unspent. */
export function unavailable(error: unknown): PaymentRefusal {
  if (storageCode(error) !== undefined) return unrecordable
  const detail =
    error instanceof RpcFault || error instanceof RpcError
      ? 'The network cannot be reached now; try again with the same credential.'
      : 'The network does not answer as expected; try again with the same credential.'
  return later(detail, 5)
}

/** Whether the signature is refused, which takes precedence over the reasons of the transfer. */
export function isUnsigned({ reason }: { reason: Reason }): boolean {
  return (
    reason === 'invalid_exact_evm_signature' ||
    reason === 'invalid_permit2_signature' ||
    reason === 'invalid_batch_settlement_evm_voucher_signature' ||
    reason === 'eip6492_factory_not_allowed'
  )
}

/** The reason code for a transfer that fails in simulation. */
export function simulationReason(transfer: Transfer): Reason {
  return transfer.method === 'permit2'
    ? 'permit2_simulation_failed'
    : 'invalid_exact_evm_transaction_simulation_failed'
}

/** A refusal that the payment itself causes. */
export function refuse(reason: Reason, detail: string): PaymentRefusal {
  return { kind: 'refused', reason, detail }
}

/** Results of the other reads of a failed transfer. */
export type Facts = {
  used: boolean | undefined
  balance: bigint | undefined
  timestamp: bigint | undefined
  allowance: bigint | undefined
  hasProxy: boolean
  refusedByWallet: boolean
  /** The signing domain that the payer was given, if it need not be the token's. */
  eip712: Asset['eip712'] | undefined
}

/** First matching reason, in the order of the reference facilitator. */
export function explain(
  { asset }: Pick<NetworkConfig, 'asset'>,
  transfer: Transfer,
  facts: Facts,
): PaymentRefusal {
  const { amountAtomic, validAfter, validBefore } = transfer
  const { eip712 } = asset
  const isPermit = transfer.method === 'permit2'
  if (facts.refusedByWallet) {
    const given = Explanation.domain(transfer, facts.eip712 ?? eip712)
    const detail = `The wallet ${transfer.payer} refuses the signature in the EIP-712 domain ${given}.`
    return refuse(signatureCodes[transfer.method], detail)
  }
  const time = facts.timestamp
  if (time !== undefined && time >= validBefore) {
    const detail =
      `The authorization has expired on chain: it ends at ${validBefore}, and the newest block is ` +
      `of ${time}. Sign a new one.`
    return refuse(expiredReason(transfer), detail)
  }
  if (time !== undefined && (isPermit ? time < validAfter : time <= validAfter)) {
    return refuse(
      isPermit ? 'permit2_not_yet_valid' : 'invalid_exact_evm_payload_authorization_valid_after',
      `The authorization is not valid on chain yet: validAfter is ${validAfter}, and the newest ` +
        `block is of ${time}.`,
    )
  }
  if (!facts.hasProxy) {
    const proxy = transfer.upto === undefined ? 'x402ExactPermit2Proxy' : 'x402UptoPermit2Proxy'
    const detail = `${proxy} is not on ${transfer.network}: pay by another offer.`
    return refuse('permit2_proxy_not_deployed', detail)
  }
  if (facts.used === undefined && !isPermit) {
    const detail = `The token ${transfer.asset} has no EIP-3009: pay by Permit2.`
    return refuse('invalid_exact_evm_eip3009_not_supported', detail)
  }
  const given = isPermit ? undefined : facts.eip712
  if (given && (given.name !== eip712.name || given.version !== eip712.version)) {
    const domain = Explanation.domain(transfer, eip712)
    return refuse(
      given.name === eip712.name
        ? 'invalid_exact_evm_token_version_mismatch'
        : 'invalid_exact_evm_token_name_mismatch',
      `The signing domain of the token is ${domain}: correct extra.`,
    )
  }
  if (facts.balance !== undefined && facts.balance < amountAtomic) {
    return refuse(
      isPermit ? 'permit2_insufficient_balance' : 'invalid_exact_evm_insufficient_balance',
      Explanation.lowBalance(transfer, facts.balance, asset),
    )
  }
  if (facts.allowance !== undefined && facts.allowance < amountAtomic) {
    const detail = Explanation.lowAllowance(transfer, facts.allowance, asset)
    return refuse('permit2_allowance_required', detail)
  }
  const detail =
    `The transfer of ${Explanation.amount(amountAtomic, asset)} fails in simulation on ` +
    `${transfer.network}: the token may be paused, or block the payer or the payee.`
  return refuse(simulationReason(transfer), detail)
}

/**
 * Whether only the old time of the newest block may make the transfer fail. By our clock it is
 * valid, and the next block is as late as the transaction. Used where a node cannot override the
 * time.
 */
export function isEarly(
  {
    abilities,
    head,
    network,
  }: {
    abilities: { hasOverrides: boolean }
    head: Pick<Head, 'isOld'>
    network: Pick<NetworkConfig, 'asset'>
  },
  transfer: Transfer,
  facts: Facts,
  now: number,
): boolean {
  const { timestamp, used, balance, allowance, hasProxy, refusedByWallet, eip712 } = facts
  if (abilities.hasOverrides || timestamp === undefined || timestamp > transfer.validAfter)
    return false
  const own = network.asset.eip712
  const isOwn = !eip712 || (eip712.name === own.name && eip712.version === own.version)
  const seconds = BigInt(Math.floor(now / 1000))
  return (
    head.isOld &&
    transfer.validAfter <= seconds &&
    seconds < transfer.validBefore &&
    used === false &&
    balance !== undefined &&
    balance >= transfer.amountAtomic &&
    (allowance === undefined || allowance >= transfer.amountAtomic) &&
    hasProxy &&
    isOwn &&
    !refusedByWallet
  )
}

/** Only the next block shows whether the payer's code accepts the signature. */
export const tooEarly = later(
  'The newest block of the network is older than the authorization; try again.',
  2,
)
