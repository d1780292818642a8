import * as Crypto from '../protocol/Crypto'
import type { Alert } from './Config'
import { placeKinds, places } from './keys'
import { readKeys } from './kinds'
import {
  childrenUpTo,
  isEmptyList,
  readRequired,
  reportKey,
  reportRepeats,
  type Table,
} from './reader'
import * as V from './values'
import { refusePrivate } from './webhooks'

const recipientsMax = 8

/** Reads every `[[alerts]]`, in file order. */
export function readAlerts(root: Table): readonly Alert[] {
  const tables = childrenUpTo(root, 'alerts', { most: 8, what: 'places' })
  const read = tables.map(readPlace)
  const ids = read.map((place, i) => place?.id ?? i)
  reportRepeats(tables, 'kind', ids, (line) => {
    return `the place is already that of line ${line}: write one entry for both`
  })
  return read.filter((place) => place !== undefined)
}

function readPlace(table: Table): Alert | undefined {
  const kind = readRequired(table, 'kind', V.oneOf(placeKinds), '"slack"')
  // Which keys it has follows from the kind.
  if (kind === undefined) return undefined
  const values = { ...readKeys(table, places[kind], {}), kind } as Omit<Alert, 'id'> as Alert
  if ('url' in values && !values.allowPrivate) refusePrivate(table, values.url)
  if (values.kind === 'mail') checkMail(table, values)
  // Without the password, which could be guessed by the hash.
  const { password: _, about: __, allowPrivate: ___, ...place } = { password: '', ...values }
  const hash = Crypto.sha256(JSON.stringify(place))
  return { ...values, id: hash.slice(0, 16) }
}

function checkMail(table: Table, mail: Extract<Alert, { kind: 'mail' }>): void {
  const { host, to, tls, allowPrivate } = mail
  const { user, password } = table.raw
  const url = V.urlOfHost('http', host)
  const permit = 'or set allow_private = true for this place'
  if (url !== null && !allowPrivate && V.isPrivate(url))
    reportKey(table, 'host', `host is a private address; ${permit}`)
  if (tls === 'none' && !allowPrivate)
    reportKey(table, 'tls', `tls = "none" sends in clear text; ${permit}`)
  if (table.raw.to === undefined || isEmptyList(table, 'to') || to.length > recipientsMax)
    reportKey(table, 'to', `to must have 1 to ${recipientsMax} addresses`)
  if ((user === undefined) !== (password === undefined))
    reportKey(table, user === undefined ? 'password' : 'user', 'user and password belong together')
}
