import type { Address } from 'viem'
import { RpcFault } from '../../chain/client'
import * as Multicall from '../../chain/multicall'
import { isHex } from '../../chain/receipt'
import * as Counterfactual from '../../protocol/Counterfactual'
import * as Crypto from '../../protocol/Crypto'
import * as Transfer from '../../protocol/Transfer'
import type { ChainState } from '../state/state'
import * as Refusals from './refusals'

/** A transfer whose signature is the payer's own, or that only the payer's code can verify. */
export type Signed = {
  kind: 'signed'
  transfer: Transfer.Transfer
  /** `unknown`: the payer's own key signed, and its code was not read. */
  code: 'contract' | 'unknown'
}

/** Code is cached for this long, because a wallet can be deployed and a delegation withdrawn. */
const codeKeptMs = 60_000
const noCodeKeptMs = 10_000
const codesMax = 10_000

/**
 * Recovers the signer without I/O. Only when that is not the payer, reads whether the payer has
 * code, which may accept the signature (ERC-1271, EIP-7702). An ERC-6492 wrapper stays on the
 * signature when, and only when, the settling call is to deploy the payer.
 */
export async function checkSignature(
  chain: ChainState,
  transfer: Transfer.Transfer,
  now: number,
): Promise<Signed | Refusals.PaymentRefusal> {
  const digest = Transfer.digest(transfer, chain.network.asset)
  if (Crypto.recover(digest, transfer.signature) === transfer.payer) {
    return assumeSigned(transfer)
  }
  const own = unwrap(transfer)
  const mayDeploy = isAllowed(chain, transfer)
  // It may have been deployed since: a second deployment would use all gas.
  if (mayDeploy) chain.known.codes.delete(transfer.payer)
  try {
    if ((await codeOf(chain, transfer.payer, now)) === 'contract') {
      return { kind: 'signed', transfer: own, code: 'contract' }
    }
  } catch (error) {
    return Refusals.unavailable(error)
  }
  if (mayDeploy) return { kind: 'signed', transfer, code: 'contract' }
  if (own !== transfer) return Refusals.refuseFactory(transfer)
  return Refusals.refuseSignature(transfer, chain.network.asset.eip712)
}

/** The same with the signature that the wallet itself verifies, without an ERC-6492 wrapper. */
export function unwrap(transfer: Transfer.Transfer): Transfer.Transfer {
  if (transfer.method === 'permit2') return transfer
  const signature = Counterfactual.innerOf(transfer.signature)
  return signature === transfer.signature ? transfer : { ...transfer, signature }
}

/** A transfer that no key of the payer signed, as it would be settled. Verifies nothing. */
export async function openWrapper(
  chain: ChainState,
  transfer: Transfer.Transfer,
  now: number,
): Promise<Signed | Refusals.PaymentRefusal> {
  if (isAllowed(chain, transfer)) return checkSignature(chain, transfer, now)
  return { kind: 'signed', transfer: unwrap(transfer), code: 'contract' }
}

/** For a caller that has recovered the payer from the signature itself. */
export function assumeSigned(transfer: Transfer.Transfer): Signed {
  const signature = Crypto.withCanonicalV(transfer.signature)
  return { kind: 'signed', transfer: { ...transfer, signature }, code: 'unknown' }
}

async function codeOf(chain: ChainState, payer: Address, now: number): Promise<'eoa' | 'contract'> {
  const known = chain.known.codes.get(payer)
  if (known && known.until > now) return known.code
  const bytes = await chain.client.call('eth_getCode', [payer, 'latest'])
  if (!isHex(bytes)) throw new RpcFault('not a code')
  const code = bytes.length > 2 ? 'contract' : 'eoa'
  const until = now + (code === 'contract' ? codeKeptMs : noCodeKeptMs)
  if (chain.known.codes.size >= codesMax) chain.known.codes.clear()
  chain.known.codes.set(payer, { code, until })
  return code
}

/** The wrapper of a transfer that must deploy its payer first; undefined for all others. */
function wrapperOf({ method, signature }: Signature): Counterfactual.Counterfactual | undefined {
  return method === 'eip3009' ? Counterfactual.parse(signature) : undefined
}

type Signature = Pick<Transfer.Transfer, 'method' | 'signature'>

/** Whether the transfer names a factory that may be called for it. */
function isAllowed({ factories }: ChainState, transfer: Signature): boolean {
  const wrapper = wrapperOf(transfer)
  return wrapper !== undefined && factories.has(wrapper.factory)
}

/** The factory that the transfer names, if any. */
export function factoryOf(transfer: Signature): string | undefined {
  return wrapperOf(transfer)?.factory
}

/**
 * The settling call. When the transfer still has its ERC-6492 wrapper, Multicall3 first calls the
 * factory, so that a relayer never sends the payer's bytes itself. The deployment may fail, as it
 * does when the wallet was deployed meanwhile. The transfer must not fail.
 */
export function callOf(transfer: Transfer.Transfer): Multicall.Call {
  const wrapper = wrapperOf(transfer)
  if (!wrapper) return Transfer.call(transfer)
  const { factory, data, signature } = wrapper
  return Multicall.aggregate([
    { to: factory, data },
    { ...Transfer.call({ ...transfer, signature }), isRequired: true },
  ])
}
