import type { Address, Hex } from 'viem'
import * as Abi from './Abi'
import type * as Authorization from './Authorization'
import * as Permit from './Permit'

/**
 * Scheme `upto`: Permit2 `PermitWitnessTransferFrom` through the x402UptoPermit2Proxy. The payer signs
 * a ceiling, and the charge is chosen at the settlement. The witness binds the payee and the account
 * that may settle. x402 specs/schemes/upto/scheme_upto_evm.md.
 */

/** Canonical x402UptoPermit2Proxy, the same on every chain; the signed `spender`. */
export const proxyAddress: Address = '0x4020A4f3b7b90ccA423B9fabCc0CE57C6C240002'

const permitTuple = '((address,uint256),uint256,uint256)'
const witnessTuple = '(address,address,uint256)'
const selectorSettle = Abi.selector(`settle(${permitTuple},uint256,address,${witnessTuple},bytes)`)
const selectorSettleWithPermit = Abi.selector(
  `settleWithPermit(${Permit.eip2612Tuple},${permitTuple},uint256,address,${witnessTuple},bytes)`,
)

const witnessType = 'Witness(address to,address facilitator,uint256 validAfter)'
const witnessTypeHash = Abi.hashOf(witnessType)
const permitTypeHash = Permit.typeHash(witnessType)

/** What the payer signs beside a transfer: the most that may be settled, and who may settle it. */
export type Terms = NonNullable<Permit.Signed['upto']>

/** EIP-712 digest that the payer signs; it has the ceiling and not the charge. */
export function digest(transfer: Omit<Permit.Signed, 'signature'>, terms: Terms): Uint8Array {
  const witness =
    witnessTypeHash +
    Abi.address(transfer.payee) +
    Abi.address(terms.facilitator) +
    Abi.uint(transfer.validAfter)
  return Permit.digestOf({
    ...transfer,
    amountAtomic: terms.ceilingAtomic,
    spender: proxyAddress,
    typeHash: permitTypeHash,
    witness: Abi.hash(witness),
  })
}

/**
 * The call that settles `amountAtomic` of the transfer. The proxy refuses it from every account
 * except the terms' facilitator.
 */
export function call(transfer: Permit.Signed, terms: Terms): { to: Address; data: Hex } {
  const { permit2612 } = transfer
  const start = permit2612
    ? selectorSettleWithPermit + Permit.wordsOfPermit2612(permit2612)
    : selectorSettle
  const data =
    start +
    Abi.address(transfer.asset) +
    Abi.uint(terms.ceilingAtomic) +
    transfer.nonce.slice(2) +
    Abi.uint(transfer.validBefore) +
    Abi.uint(transfer.amountAtomic) +
    Abi.address(transfer.payer) +
    Abi.address(transfer.payee) +
    Abi.address(terms.facilitator) +
    Abi.uint(transfer.validAfter) +
    Abi.uint((permit2612 ? 15 : 10) * 32) +
    Abi.dynamicBytes(transfer.signature)
  return { to: proxyAddress, data: `0x${data}` }
}

/** Decodes `settle` and `settleWithPermit` of the proxy; undefined for other calls. */
export function parseCall(to: Address, data: string): Authorization.ParsedCall | undefined {
  if (to.toLowerCase() !== proxyAddress.toLowerCase()) return undefined
  const selector = data.slice(2, 10).toLowerCase()
  if (selector !== selectorSettle && selector !== selectorSettleWithPermit) return undefined
  const skipped = selector === selectorSettle ? 0 : 5
  const body = data.slice(10 + skipped * 64).toLowerCase()
  const asset = Abi.toAddress(Abi.wordAt(body, 0))
  const nonce = Abi.wordAt(body, 2)
  const validBefore = Abi.toUint(Abi.wordAt(body, 3))
  const amountAtomic = Abi.toUint(Abi.wordAt(body, 4))
  const payer = Abi.toAddress(Abi.wordAt(body, 5))
  const payee = Abi.toAddress(Abi.wordAt(body, 6))
  const validAfter = Abi.toUint(Abi.wordAt(body, 8))
  if (asset === undefined || payer === undefined || payee === undefined) return undefined
  if (amountAtomic === undefined || nonce === undefined) return undefined
  if (validBefore === undefined || validAfter === undefined) return undefined
  const money = { asset, payer, payee, amountAtomic, nonce: `0x${nonce}` as const }
  return { method: 'permit2', ...money, validAfter, validBefore }
}
