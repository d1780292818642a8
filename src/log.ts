import * as Event from './log/Event'

/**
 * Writes one line per event. Redaction does not depend on the caller: the value of a field with a
 * secret's name is never shown, and text that looks like a credential is removed. So a careless
 * caller or the error message of a library cannot leak a secret.
 */
export type Log = WriteEvent & {
  /** The same log with these fields in every line. */
  child(fields: Fields): Log
}

/**
 * Writes one event at the level that log/Event.ts has for it. `said`: what a terminal shows of it in
 * place of its name and fields: undefined leaves them, and '' shows nothing, as for a step of a sale
 * that has a line of its own.
 */
export type WriteEvent = (
  event: Event.Name,
  fields?: Fields,
  said?: () => string | undefined,
) => void

export type Fields = Readonly<Record<string, unknown>>

type Options = {
  /** Receives each line without its line break. Null writes nothing, at no cost. */
  write?: ((line: string) => void) | null
  /** Human-readable instead of JSON; by default when stdout is a terminal. */
  pretty?: boolean
  /** Unix ms. */
  now?: () => number
}

type Sink = (event: Event.Name, fields: Fields, said: Parameters<WriteEvent>[2]) => void

const redacted = '[redacted]'
const depthMax = 6
const itemsMax = 100
const textMax = 4000

/** Log with the defaults of a running program: stdout and the system clock. */
export function createLog(options: Options = {}): Log {
  if (options.write === null) return silent
  const write = options.write ?? ((line: string) => process.stdout.write(`${line}\n`))
  const pretty = options.pretty ?? process.stdout.isTTY === true
  const now = options.now ?? Date.now
  return from((event, fields, said) => {
    const text = pretty ? said?.() : undefined
    if (text === '') return
    const record: Record<string, unknown> = Object.create(null)
    record.time = new Date(now()).toISOString()
    record.level = Event.events[event].level
    record.event = event
    for (const [name, value] of Object.entries(fields)) {
      if (!(name in record)) record[name] = clean(name, value, 0)
    }
    write(pretty ? formatPretty(record, text) : JSON.stringify(record))
  })
}

/** Writes nothing. */
export const silent: Log = from(undefined)

function from(sink: Sink | undefined, context: Fields = {}): Log {
  const write: WriteEvent = (event, fields = {}, said) =>
    sink?.(event, { ...context, ...fields }, said)
  const log: Log = Object.assign(write, {
    child: (fields: Fields): Log => (sink ? from(sink, { ...context, ...fields }) : log),
  })
  return log
}

// Whole words of a field name, so that `monkey` and `keyboard` stay readable.
const secretWords = new Set('auth key passphrase pwd raw seed sig token'.split(' '))
const secretParts =
  /authorization|signature|secret|credential|cookie|password|apikey|privatekey|mnemonic|payment-?redeem|x-?payment/i

/** Results by name: names of fields are few, and several lines for each payment have them. */
const known = new Map<string, boolean>()
const knownMax = 1_000

function isSecretName(name: string): boolean {
  const before = known.get(name)
  if (before !== undefined) return before
  const isSecret = hasSecretWord(name)
  if (known.size < knownMax) known.set(name, isSecret)
  return isSecret
}

function hasSecretWord(name: string): boolean {
  if (secretParts.test(name)) return true
  const words = name.replace(/([a-z\d])([A-Z])/g, '$1 $2').toLowerCase()
  return words.split(/[^a-z\d]+/).some((word) => secretWords.has(word.replace(/s$/, '')))
}

function clean(name: string, value: unknown, depth: number): unknown {
  // A count or a flag under a secret's name ("tokens: 14") is not a secret.
  if (typeof value === 'boolean' || value === undefined || value === null) return value
  if (typeof value === 'number') return Number.isFinite(value) ? value : String(value)
  if (isSecretName(name)) return redacted
  if (typeof value === 'string') return scrub(value)
  if (typeof value === 'bigint') return value.toString()
  if (typeof value !== 'object') return `[${typeof value}]`
  if (value instanceof Date) return Number.isNaN(+value) ? String(value) : value.toISOString()
  if (value instanceof URL) return scrub(value.href)
  if (ArrayBuffer.isView(value)) return `[${value.byteLength} bytes]`
  if (depth >= depthMax) return '[deep]'
  if (value instanceof Error) return cleanError(value, depth)
  if (value instanceof Headers || value instanceof Map) {
    return cleanEntries(
      [...value.entries()].map(([key, item]) => [String(key), item]),
      depth,
    )
  }
  if (Array.isArray(value)) return cleanItems(value, depth)
  if (value instanceof Set) return cleanItems([...value], depth)
  return cleanEntries(Object.entries(value), depth)
}

function cleanItems(items: readonly unknown[], depth: number): unknown[] {
  return items.slice(0, itemsMax).map((item) => clean('', item, depth + 1))
}

function cleanEntries(entries: readonly [string, unknown][], depth: number): unknown {
  const result: Record<string, unknown> = Object.create(null)
  for (const [name, value] of entries.slice(0, itemsMax)) {
    result[name] = clean(name, value, depth + 1)
  }
  return result
}

function cleanError(error: Error, depth: number): unknown {
  const result: Record<string, unknown> = { name: error.name, message: scrub(error.message) }
  if ('code' in error) result.code = clean('', error.code, depth + 1)
  if (error.stack) result.stack = scrub(error.stack)
  if (error.cause !== undefined) result.cause = clean('', error.cause, depth + 1)
  return result
}

/**
 * Text without what looks like a credential: authorization schemes with their value, signatures and
 * signed transactions (130 or more hex digits), long base64, secrets of places of alerts, and every
 * part of a URL after its origin. RPC URLs have their API key in the path.
 */
export function scrub(text: string): string {
  // Short texts without blanks, a URL or a token need no pattern: nearly every id and hash.
  if (text.length < 128 && !/\s|:\/\/|ey[JI]|\d:[\w-]{30}|(?:services|webhooks)\//i.test(text))
    return text
  return (
    text
      .slice(0, textMax * 4)
      .replace(/\b(https?|wss?):\/\/([^\s/?#"'<>\\]*)([^\s"'<>]*)/gi, scrubUrl)
      .replace(/\b(Payment|Bearer|Basic)\s+[\w+/=.~:-]{6,}/gi, `$1 ${redacted}`)
      // The token of a bot of Telegram, and the paths of the webhooks of Slack and Discord.
      .replace(/(?<!\d)\d{5,20}:[\w-]{30,}/g, redacted)
      .replace(/\b(services\/T\w+|api\/webhooks)\/\w+\/[\w-]+/g, `$1/${redacted}`)
      .replace(/(?:0x)?[\da-f]{128,}/gi, redacted)
      .replace(/[\w+/-]{200,}={0,2}/g, redacted)
      .replace(/\bey[JI][\w+/-]{40,}={0,2}(\.[\w-]+)*/g, redacted)
      .slice(0, textMax)
  )
}

function scrubUrl(_: string, scheme: string, authority: string, rest: string): string {
  const host = authority.slice(authority.lastIndexOf('@') + 1)
  return `${scheme}://${host}${rest.length > 1 ? '/...' : rest}`
}

function formatPretty(record: Record<string, unknown>, said: string | undefined): string {
  const { time, level, event, requestId, ...fields } = record
  const parts = [String(time).slice(11, 23), String(level).toUpperCase().padEnd(5)]
  if (said !== undefined) return [...parts, visible(scrub(said))].join(' ')
  parts.push(String(event))
  if (requestId !== undefined) parts.push(printable(requestId))
  for (const [name, value] of Object.entries(fields)) {
    if (value !== undefined) parts.push(`${name}=${printable(value)}`)
  }
  return parts.join(' ')
}

function printable(value: unknown): string {
  return visible(
    typeof value === 'string' && /^[^\s"=]+$/.test(value) ? value : JSON.stringify(value),
  )
}

// A terminal interprets control characters, and bidirectional characters reorder a line. A buyer
// chooses some of the text.
function visible(text: string): string {
  return text.replace(
    /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu,
    (character) => `\\u{${character.codePointAt(0)?.toString(16)}}`,
  )
}
