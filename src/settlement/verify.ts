import type { Address, Hex } from 'viem'
import { storageCode } from '../../db/storage'
import { RpcError, RpcFault } from '../chain/client'
import * as Multicall from '../chain/multicall'
import * as Permit2 from '../chain/permit2'
import { isHex } from '../chain/receipt'
import * as Token from '../chain/token'
import * as Counterfactual from '../protocol/Counterfactual'
import * as Crypto from '../protocol/Crypto'
import * as Transfer from '../protocol/Transfer'
import type { ChainState } from './context'
import * as Deploy from './deploy'
import { type Asked, ethCall } from './ethcall'
import type { Reason } from './Payment'

/** Why nothing is sent: the money's fault, or nobody's. */
export type Refusal =
  | { kind: 'refused'; reason: Reason; detail: string }
  | { kind: 'unavailable'; detail: string; retryAfterSeconds: number }

/** A transfer whose signature is the payer's own, or that only the payer's code can judge. */
export type Signed = {
  kind: 'signed'
  transfer: Transfer.Transfer
  /** Undefined: the payer's own key signed, and nobody has looked for code. */
  hasCode: boolean | undefined
}

/** A settlement must be possible for at least this long (reference facilitator: 6 s). */
const marginSeconds = 6n
/** A wallet can be deployed, and a delegation withdrawn. */
const codeKeptMs = 60_000
const noCodeKeptMs = 10_000
const codesMax = 10_000

/** Refusal of a transfer outside its time window by our clock; undefined inside. */
export function checkWindow(transfer: Transfer.Transfer, now: number): Refusal | undefined {
  const seconds = BigInt(Math.floor(now / 1000))
  const isPermit = transfer.method === 'permit2'
  if (transfer.validBefore < seconds + marginSeconds) {
    return refuse(
      isPermit
        ? 'permit2_deadline_expired'
        : 'invalid_exact_evm_payload_authorization_valid_before',
      'the authorization has expired or is about to',
    )
  }
  if (transfer.validAfter > seconds) {
    return refuse(
      isPermit ? 'permit2_not_yet_valid' : 'invalid_exact_evm_payload_authorization_valid_after',
      'the authorization is not valid yet',
    )
  }
  return undefined
}

/**
 * Recovers the signer without I/O. Only when that is not the payer the chain is asked whether the
 * payer has code, which may accept what no key signed (ERC-1271, EIP-7702). An ERC-6492 wrapper stays
 * on the signature when, and only when, the settling call is to deploy the payer.
 */
export async function checkSignature(
  chain: ChainState,
  transfer: Transfer.Transfer,
  now: number,
): Promise<Signed | Refusal> {
  const digest = Transfer.digest(transfer, chain.network.asset)
  if (Crypto.recover(digest, transfer.signature) === transfer.payer) {
    return assumeSigned(transfer)
  }
  const own = unwrap(transfer)
  const mayDeploy = Deploy.isAllowed(chain, transfer)
  // It may have been deployed since: a second deployment would burn all gas.
  if (mayDeploy) chain.codes.delete(transfer.payer)
  try {
    if (await hasCode(chain, transfer.payer, now)) {
      return { kind: 'signed', transfer: own, hasCode: true }
    }
  } catch (error) {
    return unavailable(error)
  }
  if (mayDeploy) return { kind: 'signed', transfer, hasCode: true }
  if (own !== transfer) return refuseFactory()
  return refuse(signatureReason(transfer), 'the signature is not of the payer')
}

/** The same with the signature that the wallet itself judges, without an ERC-6492 wrapper. */
export function unwrap(transfer: Transfer.Transfer): Transfer.Transfer {
  if (transfer.method === 'permit2') return transfer
  const signature = Counterfactual.innerOf(transfer.signature)
  return signature === transfer.signature ? transfer : { ...transfer, signature }
}

/** A transfer that no key of the payer signed, as it would be settled. Nothing is judged yet. */
export async function openWrapper(
  chain: ChainState,
  transfer: Transfer.Transfer,
  now: number,
): Promise<Signed | Refusal> {
  if (Deploy.isAllowed(chain, transfer)) return checkSignature(chain, transfer, now)
  return { kind: 'signed', transfer: unwrap(transfer), hasCode: true }
}

/** A wallet that is not deployed yet: the relayer calls no stranger's factory. */
export function refuseFactory(): Refusal {
  return refuse('eip6492_factory_not_allowed', 'the wallet of the payer is not deployed')
}

/** For a caller that has recovered the payer from the signature itself. */
export function assumeSigned(transfer: Transfer.Transfer): Signed {
  const signature = Crypto.withCanonicalV(transfer.signature)
  return { kind: 'signed', transfer: { ...transfer, signature }, hasCode: undefined }
}

/**
 * Whether the money's nonce is used, and the time of the block that says so: atomic, so that
 * "unused after the deadline" proves that the money never moved. Throws RpcFault or RpcError.
 */
export async function readMoney(
  chain: Asked & Pick<ChainState, 'relayers'>,
  transfer: Transfer.Transfer,
): Promise<{ used: boolean; timestamp: bigint }> {
  const results = await aggregate(
    chain,
    chain.relayers[0]?.address,
    [nonceCall(transfer), Multicall.timestampCall],
    { gas: 200_000n },
  )
  const [state, time] = results ?? []
  const used = isUsed(transfer, state?.success ? Token.toUint(state.data) : undefined)
  const timestamp = time?.success ? Token.toUint(time.data) : undefined
  if (used === undefined || timestamp === undefined) {
    throw new RpcFault('the state of the nonce cannot be read')
  }
  return { used, timestamp }
}

/** Gas limit of a settling transaction: what is not used costs nothing, what is burnt is bounded. */
export function gasLimit(
  transfer: Pick<Transfer.Transfer, 'method' | 'permit2612'> & { signature?: Hex },
  hasCode: boolean | undefined,
): bigint {
  const { method, signature } = transfer
  const isNew = hasCode && signature !== undefined && Deploy.deploys({ method, signature })
  if (hasCode) return 600_000n + (isNew ? Deploy.deployGas : 0n)
  if (transfer.permit2612) return 400_000n
  // Chains that charge for L1 data fold it into gas: wide.
  return method === 'permit2' ? 300_000n : 200_000n
}

/** The reason code for a nonce that something else used. */
export function usedReason(transfer: Pick<Transfer.Transfer, 'method'>): Reason {
  return transfer.method === 'permit2'
    ? 'permit2_invalid_nonce'
    : 'invalid_exact_evm_nonce_already_used'
}

/** The reason code for a window that is over. */
export function expiredReason(transfer: Pick<Transfer.Transfer, 'method'>): Reason {
  return transfer.method === 'permit2'
    ? 'permit2_deadline_expired'
    : 'invalid_exact_evm_payload_authorization_valid_before'
}

/** A payer whose transactions failed on chain, as an outcome. */
export function lockedOut(retryAfterSeconds: number): Refusal {
  const detail = 'Transactions of this payer failed on chain; nothing is charged now.'
  return { kind: 'unavailable', detail, retryAfterSeconds }
}

/** A payment whose turn did not come in time, as an outcome: nothing was written. */
export const busy: Refusal = {
  kind: 'unavailable',
  detail: 'The network is busy; try again with the same credential.',
  retryAfterSeconds: 2,
}

/** The refusal while the database cannot be written: nothing is sent. */
export const unrecordable: Refusal = {
  kind: 'unavailable',
  detail: 'Payments cannot be recorded now; send the same credential again.',
  retryAfterSeconds: 5,
}

/** Network trouble as an outcome: the credential is unspent. */
export function unavailable(error: unknown): Refusal {
  if (storageCode(error) !== undefined) return unrecordable
  const detail =
    error instanceof RpcFault || error instanceof RpcError
      ? 'The network cannot be reached now; try again with the same credential.'
      : 'The network does not answer as expected; try again with the same credential.'
  return { kind: 'unavailable', detail, retryAfterSeconds: 5 }
}

/** Results of calls in the state of one block. Throws RpcFault or RpcError. */
export async function aggregate(
  chain: Asked,
  from: Address | undefined,
  calls: readonly Multicall.Call[],
  options: { gas: bigint; atSeconds?: bigint | undefined },
): Promise<Multicall.Result[] | undefined> {
  const { to, data } = Multicall.aggregate(calls)
  const answer = await ethCall(chain, { from, to, data, ...options })
  return Multicall.parseResults(answer, calls.length)
}

async function hasCode(chain: ChainState, payer: Address, now: number): Promise<boolean> {
  const known = chain.codes.get(payer)
  if (known && known.until > now) return known.hasCode
  const code = await chain.client.call('eth_getCode', [payer, 'latest'])
  if (!isHex(code)) throw new RpcFault('not a code')
  const found = { hasCode: code.length > 2, until: 0 }
  found.until = now + (found.hasCode ? codeKeptMs : noCodeKeptMs)
  if (chain.codes.size >= codesMax) chain.codes.clear()
  chain.codes.set(payer, found)
  return found.hasCode
}

/** The read that tells whether the money's nonce is used. */
export function nonceCall(transfer: Transfer.Transfer): Multicall.Call {
  return transfer.method === 'permit2'
    ? Permit2.nonceBitmap(transfer.payer, transfer.nonce)
    : Token.authorizationState(transfer.asset, transfer.payer, transfer.nonce)
}

/** What the read of the nonce says; undefined when it says nothing. */
export function isUsed(transfer: Transfer.Transfer, word: bigint | undefined): boolean | undefined {
  if (word === undefined) return undefined
  return transfer.method === 'permit2' ? Permit2.isUsed(word, transfer.nonce) : word !== 0n
}

/** The reason code for a signature that is not the payer's. */
export function signatureReason(transfer: Transfer.Transfer): Reason {
  return transfer.method === 'permit2' ? 'invalid_permit2_signature' : 'invalid_exact_evm_signature'
}

/** Whether it is the signature that is refused, which comes before all that it would settle. */
export function isUnsigned({ reason }: { reason: Reason }): boolean {
  return (
    reason === 'invalid_exact_evm_signature' ||
    reason === 'invalid_permit2_signature' ||
    reason === 'eip6492_factory_not_allowed'
  )
}

/** The reason code for a transfer that fails in simulation. */
export function simulationReason(transfer: Transfer.Transfer): Reason {
  return transfer.method === 'permit2'
    ? 'permit2_simulation_failed'
    : 'invalid_exact_evm_transaction_simulation_failed'
}

/** The money's fault. */
export function refuse(reason: Reason, detail: string): Refusal {
  return { kind: 'refused', reason, detail }
}
