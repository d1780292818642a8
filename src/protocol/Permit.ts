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

const tokenType = 'TokenPermissions(address token,uint256 amount)'
const tokenTypeHash = Abi.hashOf(tokenType)

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

/** EIP-712 domain separator of Permit2 on a chain, 64 hex digits. */
export function domainSeparator(chainId: number): string {
  return Abi.domainSeparator(chainId, permit2Address, { name: 'Permit2' })
}

/** The fields that the payer signs of every transfer. */
type Permitting = Pick<Signed, 'chainId' | 'asset' | 'amountAtomic' | 'nonce' | 'validBefore'>

/** With the type of a witness, and its hash. */
type Permitted = Permitting & {
  spender: Address
  typeHash: string
  witness: string
}

/** EIP-712 digest of a Permit2 transfer with any witness. */
export function digestOf(permitted: Permitted): Uint8Array {
  const { chainId, asset, amountAtomic, nonce, validBefore, spender } = permitted
  const token = Abi.hash(tokenTypeHash + Abi.encode(asset, amountAtomic))
  const terms = Abi.encode(spender, nonce, validBefore)
  const permit = permitted.typeHash + token + terms + permitted.witness
  return Abi.typedDigest(domainSeparator(chainId), permit)
}

const proxy = createProxy(proxyAddress, {
  types: 'address,(address,uint256)',
  members: [
    ...(['asset', 'amountAtomic', 'nonce', 'validBefore'] as const),
    ...(['payer', 'payee', 'validAfter'] as const),
  ],
  witnessType: 'Witness(address to,uint256 validAfter)',
  witness: ['payee', 'validAfter'],
})

export const { digest, call, parseCall } = proxy

type ProxyShape<Member, Bound> = {
  /** Of the parameters between the permit and the signature. */
  types: string
  /** In the order of the words of a call; the asset is the first. */
  members: readonly Member[]
  witnessType: string
  /** Those of `witnessType`, in its order. */
  witness: readonly Bound[]
}

/** The calls of a proxy, and what its payers sign. */
export function createProxy<Member extends string, Bound extends string>(
  address: Address,
  { types, members, witnessType, witness }: ProxyShape<Member, Bound>,
) {
  const parameters = `${permitTuple},${types},bytes)`
  const settle = Abi.selector(`settle(${parameters}`)
  const settleWithPermit = Abi.selector(`settleWithPermit(${eip2612Tuple},${parameters}`)
  const witnessTypeHash = Abi.hashOf(witnessType)
  const typeHash = Abi.hashOf(
    'PermitWitnessTransferFrom(TokenPermissions permitted,address spender,uint256 nonce,' +
      `uint256 deadline,Witness witness)${tokenType}${witnessType}`,
  )
  return {
    /** EIP-712 digest that the payer signs. */
    digest(transfer: Permitting & Readonly<Record<Bound, Abi.Argument>>): Uint8Array {
      const bound = Abi.encode(...witness.map((member) => transfer[member]))
      const terms = { spender: address, typeHash, witness: Abi.hash(witnessTypeHash + bound) }
      return digestOf({ ...transfer, ...terms })
    },
    /** The settling call: `settle` of the proxy, or `settleWithPermit` with an EIP-2612 permit. */
    call(transfer: Signed & Readonly<Record<Member, Abi.Argument>>): { to: Address; data: Hex } {
      const { permit2612, signature } = transfer
      const words = members.map((member) => transfer[member])
      const permit = permit2612 ? [wordsOfPermit2612(permit2612)] : []
      const data = Abi.encode(...permit, ...words, Abi.bytes(signature))
      const start = permit2612 ? settleWithPermit : settle
      return { to: address, data: `0x${start}${data}` }
    },
    /** Decodes these calls; undefined for others. */
    parseCall(to: Address, data: string): ParsedCall | undefined {
      if (to.toLowerCase() !== address.toLowerCase()) return undefined
      const selector = data.slice(2, 10).toLowerCase()
      if (selector !== settle && selector !== settleWithPermit) return undefined
      const skipped = selector === settle ? 0 : eip2612Words
      const body = data.slice(10 + skipped * 64).toLowerCase()
      const asset = Abi.addressAt(body)
      return asset && parseWords('permit2', asset, body, members)
    },
  }
}

/** The words v, r and s of a signature of 65 bytes. */
export function vrs(signature: Hex): string {
  const digits = signature.slice(2).toLowerCase()
  return digits.slice(128).padStart(64, '0') + digits.slice(0, 64) + digits.slice(64, 128)
}

/** The words of an EIP-2612 permit in a call of a proxy. */
function wordsOfPermit2612(permit: NonNullable<Signed['permit2612']>): Hex {
  const words = vrs(Crypto.withCanonicalV(permit.signature))
  const rsv = words.slice(64) + words.slice(0, 64)
  return `0x${Abi.encode(permit.valueAtomic, permit.deadline)}${rsv}`
}

/** A decoded settling call, without chain and signature. */
export type ParsedCall = Omit<Signed, 'chainId' | 'signature' | 'permit2612' | 'upto'> & {
  method: TransferMethod
}

/** Decodes the words of a call, in the order of `members`; undefined when one is missing or not right. */
export function parseWords(
  method: TransferMethod,
  asset: Address,
  body: string,
  members: readonly string[],
): ParsedCall | undefined {
  const payer = Abi.addressAt(body, members.indexOf('payer'))
  const payee = Abi.addressAt(body, members.indexOf('payee'))
  const amountAtomic = Abi.uintAt(body, members.indexOf('amountAtomic'))
  const validAfter = Abi.uintAt(body, members.indexOf('validAfter'))
  const validBefore = Abi.uintAt(body, members.indexOf('validBefore'))
  const nonce = Abi.wordAt(body, members.indexOf('nonce'))
  if (payer === undefined || payee === undefined || amountAtomic === undefined) return undefined
  if (validAfter === undefined || validBefore === undefined || nonce === undefined) return undefined
  const window = { validAfter, validBefore }
  return { method, asset, payer, payee, amountAtomic, ...window, nonce: `0x${nonce}` }
}
