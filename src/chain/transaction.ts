import type { Address, Hex } from 'viem'
import * as Crypto from '../protocol/Crypto'

/** EIP-1559 transaction, signed without viem: the paid path signs one per payment. */
export type TransactionRequest = {
  chainId: number
  nonce: number
  maxTipWei: bigint
  maxFeeWei: bigint
  gasLimit: bigint
  to: Address
  valueWei: bigint
  data: Hex
  /**
   * `data` is the init code of a contract, and `to` is its address, which is not part of the bytes.
   */
  isCreation?: boolean
}

export type Signed = { hash: Hex; raw: Hex }

/** A transaction that another party signed. */
export type Parsed = TransactionRequest & {
  hash: Hex
  /** Undefined when the signature is not canonical or recovers to no address. */
  signer: Address | undefined
}

/** The bytes to send and their hash. Throws when the key is not a valid scalar. */
export function sign(request: TransactionRequest, privateKey: Uint8Array): Signed {
  const fields = encode(request)
  return complete(fields, Crypto.sign(keccak(`02${list(fields)}`), privateKey))
}

/**
 * Parses a signed EIP-1559 transaction without an access list and recovers its signer. Undefined
 * for every other type, for a contract creation, and for bytes that differ from what `sign` writes
 * apart from the signature: nodes disagree about those.
 */
export function parse(raw: string): Parsed | undefined {
  if (!/^0x02(?:[0-9a-fA-F]{2}){1,4096}$/.test(raw)) return undefined
  const items = itemsOf(raw.slice(4).toLowerCase())
  if (items?.length !== 12) return undefined
  const [chainId, nonce, tip, maxFee, gas, to, value, data, access, parity, r, s] = items
  if (to?.length !== 40 || access !== undefined || data === undefined) return undefined
  const [id, count] = [uintOf(chainId), uintOf(nonce)].map(Number)
  if (!Number.isSafeInteger(id) || !Number.isSafeInteger(count)) return undefined
  const request: TransactionRequest = {
    chainId: id ?? 0,
    nonce: count ?? 0,
    maxTipWei: uintOf(tip),
    maxFeeWei: uintOf(maxFee),
    gasLimit: uintOf(gas),
    to: Crypto.checksum(to),
    valueWei: uintOf(value),
    data: `0x${data}`,
  }
  const fields = encode(request)
  if (uintOf(parity) > 1n || (r?.length ?? 65) > 64 || (s?.length ?? 65) > 64) return undefined
  const v = uintOf(parity) === 0n ? '1b' : '1c'
  const signature: Hex = `0x${(r ?? '').padStart(64, '0')}${(s ?? '').padStart(64, '0')}${v}`
  const signer = Crypto.recover(keccak(`02${list(fields)}`), signature)
  const again = complete(fields, signature)
  if (again.raw !== raw.toLowerCase()) return undefined
  return { ...request, hash: again.hash, signer }
}

function encode(request: TransactionRequest): string {
  return (
    integer(request.chainId) +
    integer(request.nonce) +
    integer(request.maxTipWei) +
    integer(request.maxFeeWei) +
    integer(request.gasLimit) +
    text(request.isCreation === true ? '' : request.to.slice(2).toLowerCase()) +
    integer(request.valueWei) +
    text(request.data.slice(2).toLowerCase()) +
    // No access list.
    'c0'
  )
}

function complete(fields: string, signature: Hex): Signed {
  const parity = signature.slice(130) === '1c' ? 1 : 0
  const raw = `02${list(
    fields +
      integer(parity) +
      integer(BigInt(signature.slice(0, 66))) +
      integer(BigInt(`0x${signature.slice(66, 130)}`)),
  )}`
  return { hash: `0x${keccak(raw).toHex()}`, raw: `0x${raw}` }
}

/**
 * Address of the contract that an account creates at an account nonce (EIP-161: never at another).
 */
export function createdBy(account: Address, nonce: number): Address {
  const fields = text(account.slice(2).toLowerCase()) + integer(nonce)
  return Crypto.checksum(keccak(list(fields)).subarray(12).toHex())
}

// RLP over hex digits without prefix. https://ethereum.org/developers/docs/data-structures-and-encoding/rlp

function integer(value: number | bigint): string {
  const digits = value.toString(16)
  return text(digits === '0' ? '' : digits.length % 2 ? `0${digits}` : digits)
}

function text(digits: string): string {
  if (digits.length === 2 && digits < '80') return digits
  return header(0x80, digits.length / 2) + digits
}

function list(digits: string): string {
  return header(0xc0, digits.length / 2) + digits
}

function header(base: number, size: number): string {
  if (size < 56) return byte(base + size)
  const digits = size.toString(16)
  const length = digits.length % 2 ? `0${digits}` : digits
  return byte(base + 55 + length.length / 2) + length
}

/**
 * Items of an RLP list of texts and one empty list, which is undefined here. It accepts several
 * spellings: a caller that needs the canonical one encodes again and compares. Undefined when the
 * bytes are not such a list.
 */
function itemsOf(digits: string): (string | undefined)[] | undefined {
  const outer = headOf(digits, 0)
  if (outer?.isList !== true || outer.end !== digits.length) return undefined
  const items: (string | undefined)[] = []
  for (let at = outer.start; at < outer.end; ) {
    const head = headOf(digits, at)
    if (head === undefined || head.end > outer.end) return undefined
    if (head.isList && head.start !== head.end) return undefined
    items.push(head.isList ? undefined : digits.slice(head.start, head.end))
    at = head.end
  }
  return items
}

/** Where the content of an item begins and ends, in digits. */
function headOf(
  digits: string,
  at: number,
): { isList: boolean; start: number; end: number } | undefined {
  const first = Number.parseInt(digits.slice(at, at + 2), 16)
  if (Number.isNaN(first)) return undefined
  if (first < 0x80) return { isList: false, start: at, end: at + 2 }
  const isList = first >= 0xc0
  const short = first - (isList ? 0xc0 : 0x80)
  const sizeDigits = short > 55 ? (short - 55) * 2 : 0
  const start = at + 2 + sizeDigits
  const size = sizeDigits > 0 ? Number.parseInt(digits.slice(at + 2, start), 16) : short
  const end = start + size * 2
  return end <= digits.length ? { isList, start, end } : undefined
}

function uintOf(digits: string | undefined): bigint {
  return digits === undefined || digits === '' ? 0n : BigInt(`0x${digits}`)
}

function byte(value: number): string {
  return value.toString(16).padStart(2, '0')
}

function keccak(digits: string): Uint8Array {
  return Crypto.keccak256(Uint8Array.fromHex(digits))
}
