import { keyOf } from './lines'
import { field, optional, reportKey, type Table } from './reader'
import * as V from './values'

/** Where requests are forwarded to. */
export type UpstreamConfig = {
  /** Scheme, host and port only. */
  origin: URL
  /** The path of the URL in the file, without a trailing slash; prefix of every upstream path. */
  basePath: string
  allowPrivate: boolean
  /** Parts of the URL that came from the environment: some services take their key in the path. */
  secrets: readonly string[]
}

/**
 * Reads `upstream` and, where the table has it, `allow_private`. An override is applied before the
 * rules, and one that leads to this machine allows private addresses.
 */
export function readUpstream(
  table: Table,
  inherited: boolean,
  map: ((url: URL) => URL) | undefined,
): UpstreamConfig | undefined {
  const written = optional(table, 'upstream', V.url('http', 'https'))
  if (!written) return undefined
  const url = map ? map(written) : written
  const allowPrivate = inherited || (map !== undefined && V.isLoopback(url))
  if (!allowPrivate && url.protocol !== 'https:') {
    const message = 'upstream must be https; or set allow_private = true for this merchant'
    reportKey(table, 'upstream', message)
  } else if (!allowPrivate && V.isPrivate(url)) {
    const message = 'upstream is a private address; set allow_private = true for this merchant'
    reportKey(table, 'upstream', message)
  }
  return {
    origin: new URL(url.origin),
    basePath: url.pathname.replace(/\/+$/, ''),
    allowPrivate,
    secrets: secretsAt(table, 'upstream').flatMap((part) => secretOf(part, written)),
  }
}

/**
 * The secret part of a text: only its path. A host alone gives no access, and answers may link to
 * it.
 */
function secretOf(part: string, written: URL): string[] {
  const path = URL.parse(part)?.pathname ?? part
  return path === '/' || written.host.includes(path.toLowerCase()) ? [] : [path]
}

/** Parts of a key's text that came from the environment. */
export function secretsAt({ source, path }: Table, key: string): readonly string[] {
  return source.fromEnv.get(keyOf([...path, key])) ?? []
}

/** Reads `allow_private` of a merchant. */
export function readAllowPrivate(table: Table): boolean {
  return field(table, 'allow_private', V.flag, false)
}
