import * as Format from './Format'
import * as Pattern from './Pattern'
import {
  count,
  fail,
  isContainer,
  isTable,
  type Keyword,
  type Run,
  sizeOf,
  spend,
  type Table,
} from './Run'

/** The keywords for types, values, numbers and texts. */

const typeWords: Readonly<Record<string, string>> = {
  array: 'a list',
  boolean: 'true or false',
  integer: 'a whole number',
  null: 'null',
  number: 'a number',
  object: 'an object',
  string: 'a text',
}

export const type: Keyword = ({ type }) => {
  if (type === undefined) return undefined
  const names = [type].flat().map(String)
  const reason = `must be ${names.map((name) => typeWords[name] ?? name).join(' or ')}`
  return (value, run) => names.some((name) => isOfType(value, name)) || fail(run, reason)
}

function isOfType(value: unknown, name: string): boolean {
  if (name === 'integer') return Number.isInteger(value)
  if (name === 'array') return Array.isArray(value)
  if (name === 'null') return value === null
  return name === 'object' ? isTable(value) : typeof value === name
}

export const values: Keyword = (schema) => {
  const lists = [
    ...(Object.hasOwn(schema, 'const') ? [[schema.const]] : []),
    ...(Array.isArray(schema.enum) ? [schema.enum] : []),
  ]
  if (lists.length === 0) return undefined
  const wanted = lists.map((list) => ({
    plain: new Set(list.filter((each) => !isContainer(each))),
    containers: list.filter(isContainer),
    reason: `must be ${list.length > 1 ? 'one of ' : ''}${list.map((each) => JSON.stringify(each)).join(', ')}`,
  }))
  return (value, run) =>
    wanted.every(
      ({ plain, containers, reason }) =>
        (isContainer(value)
          ? containers.some((each) => isEqual(value, each, run))
          : plain.has(value)) || fail(run, reason),
    )
}

/** Costs as much as the schema's value has parts, not the input's. */
function isEqual(value: unknown, wanted: unknown, run: Run): boolean {
  spend(run, 1)
  if (!isContainer(value) || !isContainer(wanted)) return value === wanted
  if (Array.isArray(value) !== Array.isArray(wanted)) return false
  const names = Object.keys(wanted)
  spend(run, sizeOf(value))
  return (
    Object.keys(value).length === names.length &&
    names.every(
      (name) =>
        Object.hasOwn(value, name) && isEqual((value as Table)[name], (wanted as Table)[name], run),
    )
  )
}

/** The rules of a text: its length first, because a pattern costs more. */
export const texts: Keyword = ({ minLength, maxLength, pattern, format }) => {
  const least = count(minLength) ?? 0
  const most = count(maxLength) ?? Number.POSITIVE_INFINITY
  const regExp = typeof pattern === 'string' ? Pattern.compile(pattern) : undefined
  const isFormat = typeof format === 'string' ? Format.checks[format] : undefined
  if (least === 0 && most === Number.POSITIVE_INFINITY && !regExp && !isFormat) return undefined
  const isCounted = least > 0 || most < Number.POSITIVE_INFINITY
  return (value, run) => {
    if (typeof value !== 'string') return true
    if (isCounted) {
      spend(run, value.length / 8)
      const length = lengthOf(value)
      if (length < least) return fail(run, `must have at least ${least} characters`)
      if (length > most) return fail(run, `must have at most ${most} characters`)
    }
    if (!regExp && !isFormat) return true
    spend(run, 12 + value.length / 4)
    if (regExp && !regExp.test(value)) return fail(run, 'does not match its pattern')
    return !isFormat || isFormat(value) || fail(run, `is not a valid ${format}`)
  }
}

/** In code points. */
function lengthOf(text: string): number {
  let length = text.length
  for (let index = 0; index < text.length - 1; index++) {
    if ((text.charCodeAt(index) & 0xfc00) !== 0xd800) continue
    if ((text.charCodeAt(index + 1) & 0xfc00) !== 0xdc00) continue
    length--
    index++
  }
  return length
}

export const numbers: Keyword = (schema) => {
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf } = schema
  const rules = [
    rule(minimum, 'at least', (value, limit) => value >= limit),
    rule(maximum, 'at most', (value, limit) => value <= limit),
    rule(exclusiveMinimum, 'above', (value, limit) => value > limit),
    rule(exclusiveMaximum, 'below', (value, limit) => value < limit),
    rule(multipleOf, 'a multiple of', isMultiple),
  ].filter((each) => each !== undefined)
  if (rules.length === 0) return undefined
  return (value, run) => {
    if (typeof value !== 'number') return true
    // Decimal fractions are compared as big integers.
    spend(run, multipleOf === undefined ? 0 : 16)
    const broken = rules.find(({ holds }) => !holds(value))
    return broken === undefined || fail(run, broken.reason)
  }
}

function rule(limit: unknown, words: string, holds: (value: number, limit: number) => boolean) {
  if (typeof limit !== 'number') return undefined
  return { reason: `must be ${words} ${limit}`, holds: (value: number) => holds(value, limit) }
}

/** By decimal digits: 0.3 is a multiple of 0.1. */
function isMultiple(value: number, divisor: number): boolean {
  if (Number.isInteger(value) && Number.isInteger(divisor)) return value % divisor === 0
  if (!Number.isFinite(value) || !Number.isFinite(divisor)) return false
  const [dividend, shift] = decimal(value)
  const [digits, places] = decimal(divisor)
  const common = Math.min(shift, places)
  const scaled = digits * 10n ** BigInt(places - common)
  return scaled !== 0n && (dividend * 10n ** BigInt(shift - common)) % scaled === 0n
}

/** The digits of a number, and the power of ten that they are multiplied with. */
function decimal(value: number): [digits: bigint, exponent: number] {
  const [text = '', exponent = '0'] = String(value).split('e')
  const [whole = '', fraction = ''] = text.split('.')
  return [BigInt(whole + fraction), Number(exponent) - fraction.length]
}
