import type { Address, Hex } from 'viem'
import * as Abi from './Abi'
import type { Asset, TransferMethod } from './Asset'
import * as Json from './Json'

/**
 * EIP-3009 `transferWithAuthorization`, and `receiveWithAuthorization`, which only its payee can
 * call. Both use the nonce. https://eips.ethereum.org/EIPS/eip-3009
 */

const parameters = 'address,address,uint256,uint256,uint256,bytes32'
const selectorVrs = Abi.selector(`transferWithAuthorization(${parameters},uint8,bytes32,bytes32)`)
const selectorBytes = Abi.selector(`transferWithAuthorization(${parameters},bytes)`)
const selectorReceive = Abi.selector(
  `receiveWithAuthorization(${parameters},uint8,bytes32,bytes32)`,
)

const domainType = Abi.hashOf(
  'EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)',
)
const transferType = Abi.hashOf(
  'TransferWithAuthorization(address from,address to,uint256 value,' +
    'uint256 validAfter,uint256 validBefore,bytes32 nonce)',
)
const receiveType = Abi.hashOf(
  'ReceiveWithAuthorization(address from,address to,uint256 value,' +
    'uint256 validAfter,uint256 validBefore,bytes32 nonce)',
)

/**
 * Requests to the facilitator choose some keys, so the cache is emptied when it grows. That does
 * not change any result.
 */
const domains = new Map<string, string>()
const domainsMax = 1024
const domainKeyMax = 256

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
}

/** Reads the signed members, as both protocols send them. Throws a JsonError. */
export function read(json: Json.JsonObject) {
  return {
    payer: Json.read(json, 'from', 'address'),
    payee: Json.read(json, 'to', 'address'),
    amountAtomic: Json.read(json, 'value', 'uint'),
    nonce: Json.read(json, 'nonce', 'word'),
    validAfter: Json.read(json, 'validAfter', 'uint'),
    validBefore: Json.read(json, 'validBefore', 'uint'),
  }
}

/** EIP-712 domain separator of a token, 64 hex digits. */
export function domainSeparator(
  chainId: number,
  contract: Address,
  domain: Asset['eip712'],
): string {
  const { name, version } = domain
  // The length separates version and name, so that no two tokens share a key.
  const key = `${chainId}/${contract}/${version.length}/${version}/${name}`
  const known = domains.get(key)
  if (known !== undefined) return known
  const names = Abi.hashOf(name) + Abi.hashOf(version)
  const words = names + Abi.uint(chainId) + Abi.address(contract)
  const separator = Abi.hash(domainType + words)
  if (key.length > domainKeyMax) return separator
  if (domains.size >= domainsMax) domains.clear()
  domains.set(key, separator)
  return separator
}

/** EIP-712 digest that the payer signs. */
export function digest(
  transfer: Omit<Signed, 'signature'>,
  asset: Pick<Asset, 'eip712'>,
): Uint8Array {
  const separator = domainSeparator(transfer.chainId, transfer.asset, asset.eip712)
  return Abi.typedDigest(separator, transferType + words(transfer))
}

/** EIP-712 digest that the payer signs for `receiveCall`. */
export function receiveDigest(
  transfer: Omit<Signed, 'signature'>,
  asset: Pick<Asset, 'eip712'>,
): Uint8Array {
  const separator = domainSeparator(transfer.chainId, transfer.asset, asset.eip712)
  return Abi.typedDigest(separator, receiveType + words(transfer))
}

/**
 * The settling call: the v, r, s overload for a 65-byte signature, which every EIP-3009 token has,
 * else the bytes overload.
 */
export function call(transfer: Signed): { to: Address; data: Hex } {
  const head = words(transfer)
  const data =
    transfer.signature.length === 132
      ? selectorVrs + head + vrs(transfer)
      : selectorBytes + head + Abi.uint(7 * 32) + Abi.dynamicBytes(transfer.signature)
  return { to: transfer.asset, data: `0x${data.toLowerCase()}` }
}

/** The payee's call; the token refuses any other caller. `signature` has 65 bytes. */
export function receiveCall(transfer: Signed): { to: Address; data: Hex } {
  return { to: transfer.asset, data: `0x${selectorReceive}${words(transfer)}${vrs(transfer)}` }
}

/** Decodes either overload; undefined for other calls. The asset is the called contract. */
export function parseCall(to: Address, data: string): ParsedCall | undefined {
  const selector = data.slice(2, 10).toLowerCase()
  if (selector !== selectorVrs && selector !== selectorBytes) return undefined
  return parseWords('eip3009', to, data.slice(10).toLowerCase(), layout)
}

const layout = { payer: 0, payee: 1, amountAtomic: 2, validAfter: 3, validBefore: 4, nonce: 5 }

/** A decoded settling call, without chain and signature. */
export type ParsedCall = Omit<Signed, 'chainId' | 'signature'> & { method: TransferMethod }

/** Decodes the words of a call at the places of `layout`; undefined when one is missing or not right. */
export function parseWords(
  method: TransferMethod,
  asset: Address,
  body: string,
  at: typeof layout,
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

/** v, r and s of a signature of 65 bytes. */
function vrs({ signature }: Pick<Signed, 'signature'>): string {
  const digits = signature.slice(2).toLowerCase()
  return digits.slice(128).padStart(64, '0') + digits.slice(0, 64) + digits.slice(64, 128)
}

function words(transfer: Omit<Signed, 'signature'>): string {
  return (
    Abi.address(transfer.payer) +
    Abi.address(transfer.payee) +
    Abi.uint(transfer.amountAtomic) +
    Abi.uint(transfer.validAfter) +
    Abi.uint(transfer.validBefore) +
    transfer.nonce.slice(2)
  )
}
