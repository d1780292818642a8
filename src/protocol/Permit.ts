import type { Address, Hex } from 'viem'
import * as Abi from './Abi'
import type { TransferMethod } from './Asset'
import * as Crypto from './Crypto'

/**
 * Permit2 `PermitWitnessTransferFrom` through the x402ExactPermit2Proxy. Its witness binds the
 * payee, so the money cannot be redirected. x402 specs/schemes/exact/scheme_exact_evm.md.
 */

/** Canonical Permit2, the same on every chain. */
export const permit2Address: Address = '0x000000000022D473030F116dDEE9F6B43aC78BA3'

/** Canonical x402ExactPermit2Proxy, the same on every chain; the signed `spender`. */
export const proxyAddress: Address = '0x402085c248EeA27D92E8b30b2C58ed07f9E20001'

const permitTuple = '((address,uint256),uint256,uint256)'
/** Type of the EIP-2612 permit in calls of the proxies. */
const eip2612Tuple = '(uint256,uint256,bytes32,bytes32,uint8)'
const eip2612Words = 5

const domainType = Abi.hashOf('EIP712Domain(string name,uint256 chainId,address verifyingContract)')
const tokenType = 'TokenPermissions(address token,uint256 amount)'
const witnessType = 'Witness(address to,uint256 validAfter)'
const tokenTypeHash = Abi.hashOf(tokenType)
const witnessTypeHash = Abi.hashOf(witnessType)
const permitTypeHash = typeHash(witnessType)

const domains = new Map<number, string>()

/**
 * The fields of a transfer for the signed struct and the call. Addresses are EIP-55 checksummed.
 */
export type Signed = {
  chainId: number
  asset: Address
  payer: Address
  payee: Address
  amountAtomic: bigint
  /** 32 bytes, lower-case hex; a Permit2 nonce is padded to 32 bytes. */
  nonce: Hex
  /** Unix seconds. */
  validAfter: bigint
  /** Unix seconds: EIP-3009 `validBefore`, Permit2 `deadline`. */
  validBefore: bigint
  /**
   * As received, after the static length check. Not unique for a payment, because it is malleable.
   */
  signature: Hex
  /**
   * The payer's EIP-2612 permit of this amount for Permit2, sent in the settling call. Unix
   * seconds. A signature of 65 bytes, because the proxy passes v, r and s.
   */
  permit2612?: { valueAtomic: bigint; deadline: bigint; signature: Hex }
  /**
   * For the scheme `upto`: the signed ceiling, and the only account that may settle. `amountAtomic`
   * is then the charge.
   */
  upto?: { ceilingAtomic: bigint; facilitator: Address }
}

/** Type hash of a Permit2 transfer with a witness. */
export function typeHash(witnessType: string): string {
  return Abi.hashOf(
    'PermitWitnessTransferFrom(TokenPermissions permitted,address spender,uint256 nonce,' +
      `uint256 deadline,Witness witness)${tokenType}${witnessType}`,
  )
}

/** EIP-712 domain separator of Permit2 on a chain, 64 hex digits. */
export function domainSeparator(chainId: number): string {
  const known = domains.get(chainId)
  if (known !== undefined) return known
  const words = Abi.hashOf('Permit2') + Abi.uint(chainId) + Abi.address(permit2Address)
  const separator = Abi.hash(domainType + words)
  if (domains.size >= 1024) domains.clear()
  domains.set(chainId, separator)
  return separator
}

/** EIP-712 digest that the payer signs. */
export function digest(transfer: Omit<Signed, 'signature'>): Uint8Array {
  const witness = Abi.hash(
    witnessTypeHash + Abi.address(transfer.payee) + Abi.uint(transfer.validAfter),
  )
  return digestOf({ ...transfer, spender: proxyAddress, typeHash: permitTypeHash, witness })
}

/** The fields of a Permit2 transfer with a witness: its type, and the hash of the witness. */
type Permitted = Pick<Signed, 'chainId' | 'asset' | 'amountAtomic' | 'nonce' | 'validBefore'> & {
  spender: Address
  typeHash: string
  witness: string
}

/** EIP-712 digest of a Permit2 transfer with any witness. */
export function digestOf(permitted: Permitted): Uint8Array {
  const token = Abi.hash(
    tokenTypeHash + Abi.address(permitted.asset) + Abi.uint(permitted.amountAtomic),
  )
  const permit =
    permitted.typeHash +
    token +
    Abi.address(permitted.spender) +
    permitted.nonce.slice(2) +
    Abi.uint(permitted.validBefore) +
    permitted.witness
  return Abi.typedDigest(domainSeparator(permitted.chainId), permit)
}

const proxy = createProxy(proxyAddress, 'address,(address,uint256)', {
  asset: 0,
  amountAtomic: 1,
  nonce: 2,
  validBefore: 3,
  payer: 4,
  payee: 5,
  validAfter: 6,
})

/** Decodes `settle` and `settleWithPermit` of the proxy; undefined for other calls. */
export const { parseCall } = proxy

/** The settling call: `settle` of the proxy, or `settleWithPermit` with an EIP-2612 permit. */
export function call(transfer: Signed): { to: Address; data: Hex } {
  return proxy.call(
    transfer,
    Abi.address(transfer.asset) +
      Abi.uint(transfer.amountAtomic) +
      transfer.nonce.slice(2) +
      Abi.uint(transfer.validBefore) +
      Abi.address(transfer.payer) +
      Abi.address(transfer.payee) +
      Abi.uint(transfer.validAfter),
  )
}

/**
 * The calls of a proxy. `types` are those of its parameters between the permit and the signature.
 * `layout` has the places of the members among the words of a call.
 */
export function createProxy(address: Address, types: string, layout: Layout & { asset: number }) {
  const parameters = `${permitTuple},${types},bytes)`
  const settle = Abi.selector(`settle(${parameters}`)
  const settleWithPermit = Abi.selector(`settleWithPermit(${eip2612Tuple},${parameters}`)
  return {
    /** `words` precede the place of the signature. */
    call({ permit2612, signature }: Signed, words: string): { to: Address; data: Hex } {
      const start = permit2612 ? settleWithPermit + wordsOfPermit2612(permit2612) : settle
      const place = words.length / 64 + 1 + (permit2612 ? eip2612Words : 0)
      const data = start + words + Abi.uint(place * 32) + Abi.dynamicBytes(signature)
      return { to: address, data: `0x${data}` }
    },
    parseCall(to: Address, data: string): ParsedCall | undefined {
      if (to.toLowerCase() !== address.toLowerCase()) return undefined
      const selector = data.slice(2, 10).toLowerCase()
      if (selector !== settle && selector !== settleWithPermit) return undefined
      const skipped = selector === settle ? 0 : eip2612Words
      const body = data.slice(10 + skipped * 64).toLowerCase()
      const asset = Abi.addressAt(body, layout.asset)
      return asset && parseWords('permit2', asset, body, layout)
    },
  }
}

/** The words v, r and s of a signature of 65 bytes. */
export function vrs(signature: Hex): string {
  const digits = signature.slice(2).toLowerCase()
  return digits.slice(128).padStart(64, '0') + digits.slice(0, 64) + digits.slice(64, 128)
}

/** The words of an EIP-2612 permit in a call of a proxy. */
function wordsOfPermit2612(permit: NonNullable<Signed['permit2612']>): string {
  const signature = Crypto.withCanonicalV(permit.signature).slice(2).toLowerCase()
  return (
    Abi.uint(permit.valueAtomic) +
    Abi.uint(permit.deadline) +
    signature.slice(0, 128).padEnd(128, '0') +
    signature.slice(128, 130).padStart(64, '0')
  )
}

/** A decoded settling call, without chain and signature. */
export type ParsedCall = Omit<Signed, 'chainId' | 'signature' | 'permit2612' | 'upto'> & {
  method: TransferMethod
}

type Layout = Record<keyof Omit<ParsedCall, 'method' | 'asset'>, number>

/** Decodes the words of a call at the places of `layout`; undefined when one is missing or not right. */
export function parseWords(
  method: TransferMethod,
  asset: Address,
  body: string,
  at: Layout,
): ParsedCall | undefined {
  const payer = Abi.addressAt(body, at.payer)
  const payee = Abi.addressAt(body, at.payee)
  const amountAtomic = Abi.uintAt(body, at.amountAtomic)
  const validAfter = Abi.uintAt(body, at.validAfter)
  const validBefore = Abi.uintAt(body, at.validBefore)
  const nonce = Abi.wordAt(body, at.nonce)
  if (payer === undefined || payee === undefined || amountAtomic === undefined) return undefined
  if (validAfter === undefined || validBefore === undefined || nonce === undefined) return undefined
  const window = { validAfter, validBefore }
  return { method, asset, payer, payee, amountAtomic, ...window, nonce: `0x${nonce}` }
}
