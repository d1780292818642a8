import type { Address, Hex } from 'viem'
import * as Permit from './Permit'

/**
 * Scheme `upto`: Permit2 `PermitWitnessTransferFrom` through the x402UptoPermit2Proxy. The payer signs
 * a ceiling, and the charge is chosen at the settlement. The witness binds the payee and the account
 * that may settle. x402 specs/schemes/upto/scheme_upto_evm.md.
 */

/** Canonical x402UptoPermit2Proxy, the same on every chain; the signed `spender`. */
export const proxyAddress: Address = '0x4020A4f3b7b90ccA423B9fabCc0CE57C6C240002'

/** What the payer signs beside a transfer: the most that may be settled, and who may settle it. */
type Terms = NonNullable<Permit.Signed['upto']>

const proxy = Permit.createProxy(proxyAddress, {
  types: 'uint256,address,(address,address,uint256)',
  members: [
    ...(['asset', 'ceilingAtomic', 'nonce', 'validBefore'] as const),
    ...(['amountAtomic', 'payer', 'payee', 'facilitator', 'validAfter'] as const),
  ],
  witnessType: 'Witness(address to,address facilitator,uint256 validAfter)',
  witness: ['payee', 'facilitator', 'validAfter'],
})

/** EIP-712 digest that the payer signs; it has the ceiling and not the charge. */
export function digest(transfer: Omit<Permit.Signed, 'signature'>, terms: Terms): Uint8Array {
  return proxy.digest({ ...transfer, ...terms, amountAtomic: terms.ceilingAtomic })
}

export const { parseCall } = proxy

/**
 * The call that settles `amountAtomic` of the transfer. The proxy refuses it from every account
 * except the terms' facilitator.
 */
export function call(transfer: Permit.Signed, terms: Terms): { to: Address; data: Hex } {
  return proxy.call({ ...transfer, ...terms })
}
