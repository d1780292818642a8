import type { Address, Hex } from 'viem'
import * as Crypto from '../protocol/Crypto'

/** EIP-1559 transaction, signed by hand: the paid path signs one per payment. */
export type Request = {
  chainId: number
  nonce: number
  maxTipWei: bigint
  maxFeeWei: bigint
  gasLimit: bigint
  to: Address
  valueWei: bigint
  data: Hex
}

export type Signed = { hash: Hex; raw: Hex }

/** The bytes to send and their hash. Throws when the key is not a valid scalar. */
export function sign(request: Request, privateKey: Uint8Array): Signed {
  const fields =
    integer(request.chainId) +
    integer(request.nonce) +
    integer(request.maxTipWei) +
    integer(request.maxFeeWei) +
    integer(request.gasLimit) +
    text(request.to.slice(2).toLowerCase()) +
    integer(request.valueWei) +
    text(request.data.slice(2).toLowerCase()) +
    // No access list.
    'c0'
  const signature = Crypto.sign(keccak(`02${list(fields)}`), privateKey)
  const parity = signature.slice(130) === '1c' ? 1 : 0
  const raw = `02${list(
    fields +
      integer(parity) +
      integer(BigInt(signature.slice(0, 66))) +
      integer(BigInt(`0x${signature.slice(66, 130)}`)),
  )}`
  return { hash: Crypto.hex(keccak(raw)), raw: `0x${raw}` }
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

function byte(value: number): string {
  return value.toString(16).padStart(2, '0')
}

function keccak(digits: string): Uint8Array {
  return Crypto.keccak256(Buffer.from(digits, 'hex'))
}
