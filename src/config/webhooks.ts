import * as Crypto from '../protocol/Crypto'
import * as Webhook from '../protocol/Webhook'
import type { Webhook as Endpoint } from './Config'
import { webhook as keys } from './keys'
import { readKeys } from './kinds'
import { nearest } from './nearest'
import {
  childrenUpTo,
  isEmptyList,
  type Read,
  readList,
  readRequired,
  reportKey,
  reportRepeats,
  type Table,
} from './reader'
import * as V from './values'

/** Secrets of one endpoint: the new one and those that a rotation replaces. */
const secretsMax = 4

/** Reads every `[[webhooks]]`, in file order. */
export function readWebhooks(root: Table): readonly Endpoint[] {
  const tables = childrenUpTo(root, 'webhooks', { most: 8, what: 'endpoints' })
  const endpoints = tables.map(readEndpoint)
  const ids = endpoints.map((endpoint) => endpoint?.id)
  reportRepeats(tables, 'url', ids, (line) => {
    return `url is already that of the endpoint on line ${line}: write one entry for both`
  })
  return endpoints.filter((endpoint) => endpoint !== undefined)
}

function readEndpoint(table: Table): Endpoint | undefined {
  const { url, ...rest } = readKeys(table, keys, {
    events: () => readEvents(table),
    secrets: () => readSecrets(table),
  })
  if (url !== undefined && !rest.allowPrivate) refusePrivate(table, url)
  return url && { id: idOf(url), url, ...rest }
}

/** Refuses what only `allow_private` allows. */
export function refusePrivate(table: Table, url: URL): void {
  const isPlain = url.protocol !== 'https:'
  if (!isPlain && !V.isPrivate(url)) return
  const what = isPlain ? 'must be https' : 'is a private address'
  const message = `url ${what}; or set allow_private = true for this endpoint`
  reportKey(table, 'url', message)
}

function readEvents(table: Table): readonly Webhook.Pattern[] {
  if (table.raw.events === undefined || isEmptyList(table, 'events')) {
    const message = 'events is missing; write events = ["payment.confirmed"], or ["*"] for all'
    reportKey(table, 'events', message)
  }
  return readList(table, 'events', eventPattern) ?? []
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
    const one = readRequired(table, 'secret', key, `"\${WEBHOOK_SECRET}"`)
    return one === undefined ? [] : [one]
  }
  if (secret.length === 0 || secret.length > secretsMax) {
    const message = `secret must be one secret or an array of 1 to ${secretsMax}, the newest first`
    reportKey(table, 'secret', message)
  }
  return readList(table, 'secret', key) ?? []
}

const key: Read<Uint8Array> = (value) =>
  (typeof value === 'string' ? Webhook.parseSecret(value) : undefined) ?? {
    wrong:
      'must be whsec_ and the base64 of 24 to 64 bytes; make one by: echo "whsec_$(openssl rand -base64 32)"',
    hide: true,
  }

/** The id of an endpoint: equal for the same URL in every file. It does not show the URL. */
function idOf({ href }: URL): string {
  return Crypto.sha256(href).slice(0, 16)
}
