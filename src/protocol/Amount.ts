/** Largest uint256. */
export const max = 2n ** 256n - 1n

const decimalPattern = /^(0|[1-9]\d*)(?:\.(\d+))?$/

/**
 * Atomic amount of a decimal text such as `0.005`. Throws a RangeError when the text is not a plain
 * decimal, has more than `decimals` places or exceeds 2^256 - 1.
 */
export function fromDecimal(text: string, decimals: number): bigint {
  const match = decimalPattern.exec(text)
  if (!match) throw new RangeError(`"${text}" is not a decimal amount`)
  const fraction = match[2] ?? ''
  if (fraction.length > decimals) {
    throw new RangeError(`"${text}" has more than ${decimals} decimal places`)
  }
  const atomic = BigInt(`${match[1]}${fraction.padEnd(decimals, '0')}`)
  if (atomic > max) throw new RangeError(`"${text}" is too large`)
  return atomic
}

export function least(left: bigint, right: bigint): bigint {
  return left < right ? left : right
}

export function greatest(left: bigint, right: bigint): bigint {
  return left > right ? left : right
}

/** Decimal text with all fractional digits, e.g. `0.005000`. */
export function toDecimal(atomic: bigint, decimals: number): string {
  if (decimals === 0) return atomic.toString()
  const digits = atomic.toString().padStart(decimals + 1, '0')
  return `${digits.slice(0, -decimals)}.${digits.slice(-decimals)}`
}

/** With at least two fractional digits and no further trailing zeros, e.g. `0.005`. */
export function toShort(atomic: bigint, decimals: number): string {
  return toDecimal(atomic, decimals).replace(/(\.\d\d\d*?)0+$/, '$1')
}
