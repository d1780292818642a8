import * as Webhook from '../protocol/Webhook'
import type { Webhook as Endpoint } from './Config'
import { webhook as keys } from './keys'
import { readKeys } from './kinds'
import { keyOf } from './lines'
import { nearest } from './nearest'
import { at, children, isEmptyList, list, type Read, report, required, type Table } from './reader'
import * as V from './values'

const endpointsMax = 8
/** Secrets of one endpoint: the new one and those that a rotation replaces. */
const secretsMax = 4

/** Reads every `[[webhooks]]`, in file order. */
export function readWebhooks(root: Table): readonly Endpoint[] {
  const tables = children(root, 'webhooks')
  if (tables.length > endpointsMax) {
    const message = `there are ${tables.length} endpoints; at most ${endpointsMax} are allowed`
    report(root.source, ['webhooks', endpointsMax], message)
  }
  const endpoints = tables.map(readEndpoint)
  const firsts = new Map<string, number>()
  return tables.flatMap((table, i) => {
    const endpoint = endpoints[i]
    if (endpoint === undefined) return []
    const first = firsts.get(endpoint.id)
    if (first === undefined) {
      firsts.set(endpoint.id, i)
      return [endpoint]
    }
    const line = root.source.lines.get(keyOf(['webhooks', first, 'url']))
    const message = `url is already that of the endpoint on line ${line}: write one entry for both`
    report(table.source, at(table, 'url'), message)
    return []
  })
}

function readEndpoint(table: Table): Endpoint | undefined {
  const { url, ...rest } = readKeys(table, keys, {
    events: () => readEvents(table),
    secrets: () => readSecrets(table),
  })
  if (url !== undefined && !rest.allowPrivate) refusePrivate(table, url)
  return url && { id: idOf(url), url, ...rest }
}

function refusePrivate(table: Table, url: URL): void {
  const isPlain = url.protocol !== 'https:'
  if (!isPlain && !V.isPrivate(url)) return
  const what = isPlain ? 'must be https' : 'is a private address'
  const message = `url ${what}; or set allow_private = true for this endpoint`
  report(table.source, at(table, 'url'), message)
}

function readEvents(table: Table): readonly Webhook.Pattern[] {
  if (table.raw.events === undefined || isEmptyList(table, 'events')) {
    const message = 'events is missing; write events = ["payment.confirmed"], or ["*"] for all'
    report(table.source, at(table, 'events'), message)
  }
  return list(table, 'events', eventPattern) ?? []
}

const eventPattern: Read<Webhook.Pattern> = (value) => {
  const found = Webhook.patterns.find((pattern) => pattern === value)
  if (found !== undefined) return found
  const near = typeof value === 'string' ? nearest(value, Webhook.patterns) : undefined
  const known = Webhook.patterns.join(', ')
  return {
    wrong: `must be one of ${known}`,
    ...(near !== undefined && { hint: `did you mean ${near}?` }),
  }
}

function readSecrets(table: Table): readonly Uint8Array[] {
  const { secret } = table.raw
  if (!Array.isArray(secret)) {
    const one = required(table, 'secret', key, `"\${WEBHOOK_SECRET}"`)
    return one === undefined ? [] : [one]
  }
  if (secret.length === 0 || secret.length > secretsMax) {
    const message = `secret must be one secret or an array of 1 to ${secretsMax}, the newest first`
    report(table.source, at(table, 'secret'), message)
  }
  return list(table, 'secret', key) ?? []
}

const key: Read<Uint8Array> = (value) =>
  (typeof value === 'string' ? Webhook.parseSecret(value) : undefined) ?? {
    wrong:
      'must be whsec_ and the base64 of 24 to 64 bytes; make one by: echo "whsec_$(openssl rand -base64 32)"',
    hide: true,
  }

/** The id of an endpoint: equal for the same URL in every file. It does not show the URL. */
function idOf({ href }: URL): string {
  return new Bun.CryptoHasher('sha256').update(href).digest('hex').slice(0, 16)
}
