import { isTable } from '../../config/reader'

/** Values of a specification as TOML. */

/** A value in one line; undefined for null and what else TOML has not. */
export function of(value: unknown): string | undefined {
  if (typeof value === 'string') return text(value)
  if (typeof value === 'boolean') return String(value)
  if (typeof value === 'number') return number(value)
  if (Array.isArray(value)) {
    const items = value.map(of).filter((item) => item !== undefined)
    return `[${items.join(', ')}]`
  }
  if (!isTable(value)) return undefined
  const members = Object.entries(value).flatMap(([name, member]) => {
    const written = of(member)
    return written === undefined ? [] : [`${key(name)} = ${written}`]
  })
  return members.length === 0 ? '{}' : `{ ${members.join(', ')} }`
}

export function key(name: string): string {
  return /^[A-Za-z0-9_-]+$/.test(name) ? name : quoted(name)
}

/**
 * A string in which no name of the environment is replaced: a specification is not trusted with
 * the secrets of the operator.
 */
export function text(value: string): string {
  return quoted(plain(value))
}

export function plain(value: string): string {
  return value.replaceAll('${', '$ {')
}

/** A string in which names of the environment are replaced. */
export function quoted(value: string): string {
  const whole = value.toWellFormed().replaceAll('\ufffd', '?')
  return JSON.stringify(whole).replaceAll('\u007f', '\\u007f')
}

/** A parser refuses an integer above 2^53. */
function number(value: number): string | undefined {
  if (!Number.isFinite(value)) return undefined
  if (Number.isSafeInteger(value)) return String(value)
  const written = String(value)
  return Number.isInteger(value) && !written.includes('e') ? `${written}.0` : written
}
