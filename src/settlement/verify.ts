import type { Address } from 'viem'
import { zero } from '../protocol/Address'
import type { Asset } from '../protocol/Asset'
import * as Crypto from '../protocol/Crypto'
import { digest as digestOf, type Transfer } from '../protocol/Transfer'
import { type Context, chainOf } from './context'
import { examine } from './examine'
import type { Outcome } from './Outcome'
import * as Refusals from './refusals'
import * as Signature from './signature'
import { chainNow } from './state'

/**
 * Checks signature, window and simulation in one call to a node; nothing is written or sent.
 * `given`: the signing domain that the payer got, by default the token's own.
 */
export async function verify(
  context: Pick<Context, 'chains' | 'now' | 'monotonic'>,
  transfer: Transfer,
  given: Asset['eip712'] | undefined,
): Promise<{ ok: true } | Outcome> {
  const chain = chainOf(context, transfer.network)
  const own = chain.network.asset.eip712
  const eip712 = given ?? own
  const digest = digestOf(transfer, { eip712 })
  let signer: Address | undefined
  const isSigned = () => {
    signer ??= Crypto.recover(digest, transfer.signature) ?? zero
    return signer === transfer.payer
  }
  const late = Refusals.checkWindow(transfer, context.now())
  // Report a bad signature first: only the chain can decide it when no key of the payer signed.
  if (late && isSigned()) return late
  const isOtherDomain =
    transfer.method === 'eip3009' && (eip712.name !== own.name || eip712.version !== own.version)
  const isDecidedByChain = !isOtherDomain && Crypto.isCanonical(transfer.signature)
  const isKeys = isDecidedByChain || isSigned()
  const signed = isKeys
    ? Signature.assumeSigned(transfer)
    : await Signature.openWrapper(chain, transfer, context.now())
  if (signed.kind !== 'signed') return signed
  const sent = signed.transfer
  const isWrapped = !isKeys && sent !== transfer
  const simulation = await examine(
    chain,
    chain.relayers[0]?.address,
    {
      transfer: sent,
      code: isKeys ? 'unknown' : 'contract',
      signer: { kind: 'unchecked', isKey: isSigned },
      call: Signature.callOf(sent),
    },
    {
      now: chainNow(context, chain),
      check: { isDecidedByChain, isSigned, isWrapped, digest, eip712 },
    },
  )
  if (simulation.kind === 'refused' && Refusals.isUnsigned(simulation)) return simulation
  if (late) return late
  if (simulation.kind === 'passes') return { ok: true }
  return simulation.kind === 'used' ? Refusals.refuseUsed(transfer) : simulation
}
