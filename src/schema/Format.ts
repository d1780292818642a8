import * as Pattern from './Pattern'

/** Compiled at its first use. */
function by(pattern: string): (text: string) => boolean {
  return (text) => Pattern.compile(pattern).test(text)
}

const isLaterPart = by(`^[tT ]${timePattern().slice(1)}`)
const isRelative = by(pointerPattern('^(?:0|[1-9][0-9]*)'))
const isLocalPart = by(
  String.raw`^(?:"[\x20-\x21\x23-\x7e]{1,62}"|[a-zA-Z0-9!#$%&'*+/=?^_${'`'}{|}~-]+(?:\.[a-zA-Z0-9!#$%&'*+/=?^_${'`'}{|}~-]+)*)$`,
)
const isLabels = by(
  '^[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$',
)
const isIpv4 = by(
  String.raw`^(?:(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])$`,
)

function timePattern(): string {
  const zone = '(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])'
  return `^(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\\.[0-9]+)?${zone}$`
}

function durationPattern(): string {
  const n = '[0-9]+'
  const time = `T(?:${n}H(?:${n}M(?:${n}S)?)?|${n}M(?:${n}S)?|${n}S)`
  const date = `(?:${n}Y(?:${n}M(?:${n}D)?)?|${n}M(?:${n}D)?|${n}D)`
  return `^P(?:${n}W|${date}(?:${time})?|${time})$`
}

/** RFC 3986 by its characters: the parts of a URI are not compared with each other. */
function uriPattern(scheme: string): string {
  const rest = String.raw`[a-zA-Z0-9._~:/?@!$&'()*+,;=\[\]-]|%[0-9a-fA-F]{2}`
  return `^${scheme}(?:${rest})*(?:#(?:${rest})*)?$`
}

function pointerPattern(start: string): string {
  return `${start}(?:/(?:[^~/]|~[01])*)*$`
}

function isDate(text: string): boolean {
  const [, year, month, day] = /^(\d{4})-(\d\d)-(\d\d)$/.exec(text) ?? []
  const date = new Date(Date.UTC(Number(year), Number(month) - 1, Number(day)))
  // A day that its month lacks becomes one of the next month.
  return date.getUTCMonth() === Number(month) - 1 && date.getUTCDate() === Number(day)
}

function isEmail(text: string): boolean {
  const at = text.lastIndexOf('@')
  return at > 0 && at <= 64 && isLocalPart(text.slice(0, at)) && isHost(text.slice(at + 1))
}

function isHost(text: string): boolean {
  return text.length <= 253 && isLabels(text)
}

function isIpv6(text: string): boolean {
  return (
    text.includes(':') &&
    text.length <= 45 &&
    !/[^0-9a-f:.]/i.test(text) &&
    URL.canParse(`http://[${text}]/`)
  )
}

/**
 * The formats of JSON Schema for texts of strangers, in linear time. Other names, among them
 * `regex`, only describe a text.
 */
export const checks: Readonly<Record<string, (text: string) => boolean>> = {
  date: isDate,
  time: by(timePattern()),
  'date-time': (text) => isDate(text.slice(0, 10)) && isLaterPart(text.slice(10)),
  duration: by(durationPattern()),
  email: isEmail,
  hostname: isHost,
  ipv4: isIpv4,
  ipv6: isIpv6,
  uri: by(uriPattern('[a-zA-Z][a-zA-Z0-9+.-]*:')),
  'uri-reference': by(uriPattern('(?:[a-zA-Z][a-zA-Z0-9+.-]*:)?')),
  'uri-template': by(
    String.raw`^(?:[^\x00-\x20"'<>%\\^${'`'}{|}]|%[0-9a-fA-F]{2}|\{[+#./;?&=,!@|]?[a-zA-Z0-9_%.:*,]+\})*$`,
  ),
  url: (text) => /^(?:https?|ftp):\/\//i.test(text) && URL.canParse(text),
  uuid: by('^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$'),
  'json-pointer': by(pointerPattern('^')),
  'json-pointer-uri-fragment': by(pointerPattern('^#')),
  'relative-json-pointer': (text) => /^(?:0|[1-9]\d*)#$/.test(text) || isRelative(text),
}
