import type { Asset } from '../protocol/Asset'
import type * as Transfer from '../protocol/Transfer'
import type { ChainState } from './context'
import * as Verify from './verify'

/** Results of the reads beside a failed transfer. */
export type Facts = {
  used: boolean | undefined
  balance: bigint | undefined
  timestamp: bigint | undefined
  allowance: bigint | undefined
  hasProxy: boolean
  refusedByWallet: boolean
  /** The signing domain that the payer was told, if it need not be the token's. */
  eip712: Asset['eip712'] | undefined
}

/** First matching reason, in the order of the reference facilitator. */
export function explain(
  chain: ChainState,
  transfer: Transfer.Transfer,
  facts: Facts,
): Verify.Refusal {
  const { amountAtomic, validAfter, validBefore } = transfer
  const { eip712 } = chain.network.asset
  const isPermit = transfer.method === 'permit2'
  const { refuse } = Verify
  if (facts.refusedByWallet) {
    return refuse(Verify.signatureReason(transfer), 'the wallet of the payer refuses the signature')
  }
  const time = facts.timestamp
  if (time !== undefined && time >= validBefore) {
    return refuse(Verify.expiredReason(transfer), 'the authorization has expired on chain')
  }
  if (time !== undefined && (isPermit ? time < validAfter : time <= validAfter)) {
    return refuse(
      isPermit ? 'permit2_not_yet_valid' : 'invalid_exact_evm_payload_authorization_valid_after',
      'the authorization is not valid on chain yet',
    )
  }
  if (!facts.hasProxy) {
    return refuse('permit2_proxy_not_deployed', 'x402ExactPermit2Proxy is not on this chain')
  }
  if (facts.used === undefined && !isPermit) {
    return refuse('invalid_exact_evm_eip3009_not_supported', 'the token has no EIP-3009')
  }
  if (!isPermit && facts.eip712 && facts.eip712.name !== eip712.name) {
    return refuse('invalid_exact_evm_token_name_mismatch', `the token is named "${eip712.name}"`)
  }
  if (!isPermit && facts.eip712 && facts.eip712.version !== eip712.version) {
    const detail = `the signing domain of the token has version "${eip712.version}"`
    return refuse('invalid_exact_evm_token_version_mismatch', detail)
  }
  if (facts.balance !== undefined && facts.balance < amountAtomic) {
    return refuse(
      isPermit ? 'permit2_insufficient_balance' : 'invalid_exact_evm_insufficient_balance',
      'the balance of the payer is below the amount',
    )
  }
  if (facts.allowance !== undefined && facts.allowance < amountAtomic) {
    return refuse('permit2_allowance_required', 'the payer has not approved Permit2 for the token')
  }
  return refuse(Verify.simulationReason(transfer), 'the transfer fails in simulation')
}

/**
 * Whether only the old time of the newest block may make the transfer fail: by our clock it is
 * valid, and the next block is as late as the transaction. Asked where a node cannot override the
 * time.
 */
export function isEarly(
  { hasOverrides, head, network }: ChainState,
  transfer: Transfer.Transfer,
  facts: Facts,
  now: number,
): boolean {
  const { timestamp, used, balance, allowance, hasProxy, refusedByWallet, eip712 } = facts
  if (hasOverrides || timestamp === undefined || timestamp > transfer.validAfter) return false
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
export const tooEarly: Verify.Refusal = {
  kind: 'unavailable',
  detail: 'The newest block of the network is older than the authorization; try again.',
  retryAfterSeconds: 2,
}
