/** The header in which an upstream names the charge, as the x402 servers of the reference read it. */
export const name = 'settlement-overrides'

/**
 * The atomic amount of `{"amount": ...}`: `"1000"` atomic, `"33.33%"` of the ceiling rounded down, or
 * `"$0.05"` rounded up. Undefined for anything else; it may be above the ceiling.
 */
export function parse(header: string | null, ceilingAtomic: bigint): bigint | undefined {
  if (header === null) return undefined
  let amount: unknown
  try {
    const value: unknown = JSON.parse(header)
    const isObject = typeof value === 'object' && value !== null && Object.hasOwn(value, 'amount')
    amount = isObject ? (value as { amount: unknown }).amount : undefined
  } catch {
    return undefined
  }
  if (typeof amount !== 'string') return undefined
  if (/^\d{1,40}$/.test(amount)) return BigInt(amount)
  const percent = /^(\d{1,9})(?:\.(\d{1,2}))?%$/.exec(amount)
  if (percent) return (ceilingAtomic * scaled(percent, 2)) / 10_000n
  const dollars = /^\$(\d{1,30})(?:\.(\d{1,18}))?$/.exec(amount)
  if (dollars) return (scaled(dollars, 18) + 10n ** 12n - 1n) / 10n ** 12n
  return undefined
}

function scaled([, whole = '', fraction = '']: RegExpExecArray, decimals: number): bigint {
  return BigInt(whole + fraction.padEnd(decimals, '0'))
}
