import type { Address } from 'viem'
import { zero } from '../../protocol/Address'
import type { Asset } from '../../protocol/Asset'
import * as Crypto from '../../protocol/Crypto'
import { digest as digestOf, type Transfer } from '../../protocol/Transfer'
import type { Outcome } from '../send/Outcome'
import { type Context, chainOf } from '../state/context'
import { chainNow } from '../state/state'
import { examine, type Simulation } from './examine'
import * as Refusals from './refusals'
import * as Signature from './signature'

type Uses = Pick<Context, 'chains' | 'now' | 'monotonic'>

/** What would happen to a transfer now, and the transfer as it would be settled. */
export type Checked =
  | { transfer: Transfer; simulation: Extract<Simulation, { kind: 'passes' }> }
  | Refusals.PaymentRefusal

/**
 * Checks signature, window and simulation in one call to a node; nothing is written or sent.
 * `given`: the signing domain that the payer got, by default the token's own.
 */
export async function verify(
  context: Uses,
  transfer: Transfer,
  given: Asset['eip712'] | undefined,
): Promise<{ ok: true } | Outcome> {
  const checked = await check(context, transfer, given)
  return 'kind' in checked ? checked : { ok: true }
}

/** Like `verify`, and also resolves with what the simulation showed. */
export async function check(
  context: Uses,
  transfer: Transfer,
  given?: Asset['eip712'],
): Promise<Checked> {
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
    transfer.upto?.facilitator ?? chain.relayers[0]?.address,
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
  if (simulation.kind === 'passes') return { transfer: sent, simulation }
  return simulation.kind === 'used' ? Refusals.refuseUsed(transfer) : simulation
}
