import type { Address as EvmAddress, Hex } from 'viem'
import { type Pointer, parse as parsePointer } from '../meter/Pointer'
import * as Address from '../protocol/Address'
import * as Network from '../protocol/Network'
import { dayMs, hourMs } from '../protocol/Time'
import { builtIns, findBuiltIn } from './builtin'
import type { Read, Wrong } from './reader'

/** Placeholder where a faulty file has no address; never a payee. */
export const zeroAddress: EvmAddress = Address.zero

/** Decimals of every amount of the service (specification 8). */
const amountDecimals = 6

export const text: Read<string> = (value) =>
  typeof value === 'string' ? value : { wrong: 'must be a string in quotes' }

/** A text that matches. */
function matching(pattern: RegExp, wrong: string): Read<string> {
  return (value) => (typeof value === 'string' && pattern.test(value) ? value : { wrong })
}

export const filled = matching(/\S/, 'must be a string that is not empty')

export const flag: Read<boolean> = (value) =>
  typeof value === 'boolean' ? value : { wrong: 'must be true or false, without quotes' }

/** An integer within bounds, both allowed. */
export function integer(min: number, max: number): Read<number> {
  return (value) =>
    Number.isSafeInteger(value) && Number(value) >= min && Number(value) <= max
      ? Number(value)
      : { wrong: `must be an integer from ${min} to ${max}, without quotes` }
}

/** A factor; 0 means none. */
export const ratio: Read<number> = (value) =>
  typeof value === 'number' && Number.isFinite(value) && value >= 0
    ? value
    : { wrong: 'must be a number of at least 0, without quotes' }

export const positive: Read<number> = (value) =>
  typeof value === 'number' && Number.isFinite(value) && value > 0
    ? value
    : { wrong: 'must be a number above 0, without quotes' }

/** One of a few words. */
export function oneOf<const T extends string>(words: readonly T[]): Read<T> {
  return (value) =>
    words.find((word) => word === value) ?? {
      wrong: `must be one of ${words.map((word) => `"${word}"`).join(', ')}`,
    }
}

/** A decimal text in atomic units. Floats are refused: 0.005 is not exact in binary. */
function scaled(value: unknown, decimals: number, example: string): bigint | Wrong {
  if (typeof value !== 'string') return { wrong: `must be a string, such as "${example}"` }
  const match = /^(0|[1-9]\d{0,29})(?:\.(\d+))?$/.exec(value)
  if (!match) return { wrong: `must be a decimal number in quotes, such as "${example}"` }
  const fraction = match[2] ?? ''
  if (fraction.length > decimals) {
    return { wrong: `must have at most ${decimals} decimals, such as "${example}"` }
  }
  return BigInt(`${match[1]}${fraction.padEnd(decimals, '0')}`)
}

/** A stablecoin amount, atomic. */
export const amount: Read<bigint> = (value) => scaled(value, amountDecimals, '1.50')

/** A price, atomic, above zero. */
export const price: Read<bigint> = (value) => {
  const atomic = scaled(value, amountDecimals, '0.005')
  return atomic === 0n ? { wrong: 'must be above zero: the smallest is "0.000001"' } : atomic
}

/** Decimals of a price per unit, which may be less than the smallest amount. */
const rateDecimals = 12

/** A price of so many units, times 10^12. */
export const rate: Read<bigint> = (value) => scaled(value, rateDecimals, '0.25')

/** A gas price given in gwei, as wei, above zero. */
export const gwei: Read<bigint> = (value) => {
  const wei = scaled(value, 9, '50')
  return wei === 0n ? { wrong: 'must be above zero, such as "50"' } : wei
}

/** Native coin in wei. */
export const wei: Read<bigint> = (value) => {
  if (typeof value !== 'string' || !/^(0|[1-9]\d{0,29})$/.test(value)) {
    return { wrong: 'must be whole wei in quotes, such as "10000000000000000" for 0.01' }
  }
  return BigInt(value)
}

/** An EVM address. A mixed-case one must have the right EIP-55 checksum. */
export const address: Read<EvmAddress> = (value) => {
  const right = Address.parse(value)
  if (typeof value === 'string' && /^\s*(0x)?[0-9a-f]{64}\s*$/i.test(value))
    return { wrong: 'looks like a private key: treat it as leaked', hide: true }
  if (right === undefined) {
    return { wrong: 'must be an address: 0x and 40 hex digits, in quotes' }
  }
  if (Address.parseStrict(value) === undefined) {
    return {
      wrong: 'has a wrong EIP-55 checksum: check every digit',
      hint: `if the digits are right, write ${right}`,
    }
  }
  return right
}

export const sha256: Read<Hex> = (value) => {
  const match = typeof value === 'string' ? /^(?:0x)?([0-9a-fA-F]{64})$/.exec(value) : null
  if (match) return `0x${match[1]?.toLowerCase()}`
  // A user may write the key itself here: hide it from the message.
  return { wrong: 'must be the sha256 of the key, 64 hex digits, not the key', hide: true }
}

const units: Readonly<Record<string, number>> = { B: 1, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3 }

/** A size such as `10MiB`, in bytes, above zero. */
export const size: Read<number> = (value) => {
  const match = typeof value === 'string' ? /^([1-9]\d{0,9})(B|KiB|MiB|GiB)$/.exec(value) : null
  const bytes = match ? Number(match[1]) * (units[match[2] ?? ''] ?? Number.NaN) : Number.NaN
  return Number.isSafeInteger(bytes)
    ? bytes
    : { wrong: 'must be a size with unit B, KiB, MiB or GiB, such as "10MiB"' }
}

const spans: Readonly<Record<string, number>> = { min: hourMs / 60, h: hourMs, d: dayMs }

/** A duration such as `24h`, in ms: at least a minute, at most a leap year. */
export const duration: Read<number> = (value) => {
  const match = typeof value === 'string' ? /^([1-9]\d{0,5})(min|h|d)$/.exec(value) : null
  const ms = match ? Number(match[1]) * (spans[match[2] ?? ''] ?? Number.NaN) : Number.NaN
  return ms <= 366 * dayMs ? ms : { wrong: 'must be 1min to 366d in quotes, such as "24h"' }
}

/** A delay of withdrawals in ms, within the bounds of the contract. */
export const withdrawDelay: Read<number> = (value) => {
  const ms = duration(value)
  const isWithin = typeof ms === 'number' && ms >= hourMs / 4 && ms <= 30 * dayMs
  return isWithin ? ms : { wrong: 'must be 15min to 30d in quotes, such as "24h"' }
}

/** Whether a text is the CAIP-2 id of an EVM network. */
export function isNetworkId(text: string): text is Network.Id {
  return Number.isSafeInteger(Network.chainIdOf(text))
}

/** The CAIP-2 id of an EVM network, or the word of a built-in one. */
export const networkId: Read<Network.Id> = (value) => {
  const found = typeof value === 'string' ? findBuiltIn(value.toLowerCase())?.id : undefined
  if (found !== undefined) return found
  if (typeof value === 'string' && isNetworkId(value)) return value
  const words = builtIns.map(({ word }) => `"${word}"`).join(', ')
  return { wrong: `must be one of ${words}, or a CAIP-2 id such as "eip155:10"` }
}

/** `host:port` or `[ipv6]:port`. */
export const listen: Read<{ hostname: string; port: number }> = (value) => {
  const match =
    typeof value === 'string'
      ? /^(?:\[([0-9a-fA-F:]+)\]|([A-Za-z0-9.-]+)):(\d{1,5})$/.exec(value)
      : null
  const hostname = match?.[1] ?? match?.[2]
  const port = Number(match?.[3])
  return hostname === undefined || port > 65_535
    ? { wrong: 'must be host:port, such as "127.0.0.1:4020" or "[::1]:4020"' }
    : { hostname, port }
}

/** Absolute URL with one of the given schemes, without user, query and fragment. */
export function url(...schemes: readonly string[]): Read<URL> {
  const example = `${schemes.at(-1)}://host`
  return (value) => {
    const parsed = typeof value === 'string' ? URL.parse(value) : null
    if (!parsed || !schemes.includes(parsed.protocol.slice(0, -1)) || parsed.hostname === '') {
      return { wrong: `must be an absolute URL, such as "${example}"`, hide: true }
    }
    if (parsed.username !== '' || parsed.password !== '') {
      return { wrong: 'must not contain a user or password', hide: true }
    }
    if (/[?#\s\\]/.test(String(value))) {
      return { wrong: 'must not have a query, fragment, blank or backslash', hide: true }
    }
    return parsed
  }
}

/** An RPC endpoint. Providers put keys into path and query: both are allowed and never shown. */
export function endpoint(...schemes: readonly string[]): Read<string> {
  return (value) => {
    const parsed = typeof value === 'string' ? URL.parse(value) : null
    return parsed && schemes.includes(parsed.protocol.slice(0, -1)) && typeof value === 'string'
      ? value
      : { wrong: `must be an absolute URL, such as "${schemes.at(-1)}://host"`, hide: true }
  }
}

/**
 * The public base URL of the service: scheme, host and port only. Returned without a trailing
 * slash.
 */
export const baseUrl: Read<string> = (value) => {
  const parsed = url('http', 'https')(value)
  if (!(parsed instanceof URL)) return parsed
  return parsed.pathname === '/'
    ? parsed.origin
    : { wrong: 'must not have a path', hint: `write "${parsed.origin}"` }
}

const leadMaxCharacters = 200

export const sentence: Read<string> = (value) => {
  const text = filled(value)
  return typeof text !== 'string' || text.length <= leadMaxCharacters
    ? text
    : { wrong: `must have at most ${leadMaxCharacters} characters` }
}

/** The pages derive shades that can be read on a light and on a dark background. */
export const colour: Read<string> = (value) =>
  typeof value === 'string' && /^#[0-9a-f]{6}$/i.test(value)
    ? value.toLowerCase()
    : { wrong: 'must be a colour of six hexadecimal digits, such as "#0b6060"' }

/** An atomic amount, or "off". */
export const amountOrOff: Read<bigint | 'off'> = (value) => {
  if (value === 'off') return value
  const atomic = amount(value)
  return typeof atomic === 'bigint'
    ? atomic
    : { wrong: 'must be an amount in USD in quotes, such as "10", or "off"' }
}

export const sixDecimals: Read<number> = (value) =>
  value === 6 ? 6 : { wrong: 'must be 6: the service supports no other number of decimals' }

const segment = /^[A-Za-z0-9._~!$&'()*+,=:@-]+$/

/** A literal path below the merchant, in canonical form: empty for "/", the merchant itself. */
export const routePath: Read<string> = (value) => {
  if (value === '/') return ''
  const [first, ...rest] = typeof value === 'string' ? value.split('/') : []
  const isPath =
    first === '' &&
    rest.length > 0 &&
    rest.every((part) => segment.test(part) && part !== '.' && part !== '..')
  if (!isPath || typeof value !== 'string')
    return {
      wrong: 'must be "/" or literal segments, such as "/forecast", without a slash at the end',
    }
  return value === '/openapi.json'
    ? { wrong: 'must not be the path of the discovery document' }
    : value
}

export const example: Read<string | number | boolean> = (value) =>
  typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean'
    ? value
    : { wrong: 'must be a string, a number, true or false' }

export const slug = matching(
  /^[a-z0-9-]+$/,
  'must be small letters, digits and -, such as "weather"',
)

export const pointer: Read<Pointer> = (value) =>
  (typeof value === 'string' ? parsePointer(value) : undefined) ?? {
    wrong: 'must be a JSON pointer, such as "/usage/input_tokens"',
  }

/** An absolute URL, whose path and query may be a secret. */
export const endpointUrl: Read<URL> = (value) => {
  const parsed = typeof value === 'string' ? URL.parse(value) : null
  if (!parsed || !/^https?:$/.test(parsed.protocol) || parsed.hostname === '') {
    return { wrong: 'must be an absolute URL, such as "https://example.com/turnpike"', hide: true }
  }
  if (parsed.username !== '' || parsed.password !== '') {
    return { wrong: 'must not contain a user or password: messages are signed', hide: true }
  }
  return /[#\s\\]/.test(String(value))
    ? { wrong: 'must not have a fragment, blank or backslash', hide: true }
    : parsed
}

/** A plain address, without a name. Nothing in it can end a line or begin another address. */
export const mail = matching(
  /^[^\s\p{C}<>()[\]\\,;:@"]{1,64}@[A-Za-z0-9.-]{1,255}$/u,
  'must be a mail address without a name, such as "ops@example.com"',
)

/** The name or the address of a server, without a port. */
export const host: Read<string> = (value) =>
  typeof value === 'string' && /^[A-Za-z0-9.:-]+$/.test(value) && urlOfHost('http', value) !== null
    ? value
    : { wrong: 'must be the name of a server, such as "smtp.example.com"' }

/** An address of IPv6 gets its brackets. */
export function urlOfHost(scheme: 'http' | 'smtp', name: string): URL | null {
  return URL.parse(`${scheme}://${name.includes(':') ? `[${name}]` : name}`)
}

export const botToken: Read<string> = (value) =>
  typeof value === 'string' && /^\d{5,20}:[\w-]{30,100}$/.test(value)
    ? value
    : { wrong: 'must be the token that @BotFather gave, such as 123456:ABC-DEF', hide: true }

export const ticker = matching(
  /^[A-Z0-9.]{1,12}$/,
  'must be a ticker of capital letters, digits and dots, such as "NVDA"',
)

/** Whether a URL's host can only be this machine. */
export function isLoopback(host: URL): boolean {
  const name = host.hostname
  return (
    name === 'localhost' ||
    name.endsWith('.localhost') ||
    /^127\.\d+\.\d+\.\d+$/.test(name) ||
    name === '[::1]'
  )
}

/** Whether a URL's host is, by its text alone, not on the public internet. */
export function isPrivate(host: URL): boolean {
  return (
    isLoopback(host) ||
    /^(0|10|127|169\.254|192\.168|172\.(1[6-9]|2\d|3[01])|100\.(6[4-9]|[7-9]\d|1[01]\d|12[0-7]))\./.test(
      host.hostname,
    ) ||
    /^\[(::|::1|f[cd][0-9a-f]*:.*|fe[89ab][0-9a-f]*:.*|::ffff:.*)\]$/.test(host.hostname)
  )
}

/**
 * Least length of a value that is redacted wherever it is a separate word. Shorter values are so
 * common as words that redacting them everywhere would damage what is sold.
 */
export const secretWordMin = 4
