import type { NetworkConfig, Service } from '../config/Config'
import { isPrivate } from '../config/values'
import { scrub } from '../log'
import * as Amount from '../protocol/Amount'
import type { EventType } from '../protocol/Webhook'
import { etherText } from '../settlement/state/out-of-gas'

/** The message of an alert. */
export type AlertText = {
  /** Without a line break. */
  title: string
  /** What happened, what to do, and where to look. */
  text: string
}

/** What names of an alert are looked up in. */
export type Naming = {
  service: Pick<Service, 'title' | 'baseUrl'>
  networks: readonly Pick<NetworkConfig, 'id' | 'name' | 'ethPriceUsd'>[]
}

type Data = Readonly<Record<string, unknown>>

/** What happened, what the operator does, and the page of `/admin` about it. */
type Sentences = { what: string; remedy?: string; page?: string }

/**
 * The text of an event that `bodyOf` wrote. `escaped` makes a text plain in the format of the place:
 * reasons come from nodes and from the CA, and names of the file may have signs of a format.
 */
export function textOf(
  body: string,
  { service, networks }: Naming,
  escaped: (text: string) => string,
): AlertText {
  const { type, timestamp, data }: { type: EventType | 'test'; timestamp: string; data: Data } =
    JSON.parse(body)
  const network = networks.find(({ id }) => id === data.network)
  // The message of a node may have a URL with its key.
  const of = (key: string) => escaped(plain(scrub(String(data[key] ?? ''))))
  const name = escaped(plain(network?.name ?? String(data.network)))
  const ether = (key: string) =>
    etherText(BigInt(String(data[key] ?? 0)), network ?? { ethPriceUsd: 0 })
  const { what, remedy, page } = sentences[type]?.({ data, of, name, ether }) ?? { what: type }
  const isPublic = !isPrivate(new URL(service.baseUrl))
  const lines = [
    what,
    remedy,
    `At ${timestamp.slice(0, 16).replace('T', ' ')} UTC.`,
    isPublic && page !== undefined ? `See ${service.baseUrl}/admin${page}` : undefined,
  ]
  const title = `${escaped(plain(service.title))}: ${what.split(/(?<=[a-z0-9)])[.:] /)[0]}`
  return { title, text: lines.filter((line) => line !== undefined).join('\n') }
}

/** One line without characters that control a terminal, a header or the direction of a text. */
function plain(text: string): string {
  return text.replace(/[\p{C}\p{Z}]+/gu, ' ').trim()
}

type Values = {
  data: Data
  /** A value of the data, escaped. */
  of: (key: string) => string
  /** Of the network, escaped. */
  name: string
  /** A value in wei. */
  ether: (key: string) => string
}

const sentences: Partial<Readonly<Record<EventType | 'test', (values: Values) => Sentences>>> = {
  test: () => ({ what: 'This is a test. Alerts of the service come here.' }),
  'gas.low': ({ of, name, ether }) => ({
    what: `Gas is low on ${name}. Relayer ${of('relayer')} has ${ether('balanceWei')}, enough for about ${of('payments')} sales.`,
    remedy: `Send about ${ether('sendWei')} to ${of('relayer')} on ${name} (${of('network')}).`,
    page: '/networks',
  }),
  'gas.refilled': ({ of, name, ether }) => ({
    what: `Gas is enough again on ${name}. Relayer ${of('relayer')} has ${ether('balanceWei')}, enough for about ${of('payments')} sales.`,
  }),
  'upstream.refuses': ({ of }) => ({
    what: `The upstream of ${of('merchant')} refuses its key. ${of('reason')}`,
    remedy: 'Nothing is sold there. Correct the key, then load the file again.',
    page: '/merchants',
  }),
  'upstream.accepts': ({ of }) => ({
    what: `The upstream of ${of('merchant')} takes its key again.`,
  }),
  'delivery.failed': ({ of, data }) => ({
    what: `${data.payments === 1 ? '1 payment' : `${of('payments')} payments`} to ${of('merchant')} not delivered. Since ${of('since').slice(11, 16)} UTC; the last one at ${of('route') || '/'}: ${data.upstreamStatus === null ? 'no answer of the upstream' : `the upstream answered ${of('upstreamStatus')}`}.`,
    remedy: 'Repair the upstream: the buyers can fetch their answers for a day.',
    page: '/payments?state=undelivered',
  }),
  'refund.waits': ({ of, data, name }) => ({
    what: `${data.payments === 1 ? '1 refund waits' : `${of('payments')} refunds wait`} on ${name}. Together ${Amount.toDecimal(BigInt(String(data.amountAtomic)), 6)} from ${of('account')}: ${of('reason')}.`,
    remedy: 'The page shows each of them. If the account has too little, send the asset to it.',
    page: '/refunds',
  }),
  'refund.continues': ({ name }) => ({ what: `No refund waits on ${name} any more.` }),
  'channel.waits': ({ of, data, name }) => ({
    what: `Vouchers of channels are not claimed on ${name}. ${Amount.toDecimal(BigInt(String(data.unclaimedAtomic)), 6)} since ${of('since').slice(11, 16)} UTC: ${of('reason')}.`,
    remedy: 'A withdrawal of a buyer may take it after the delay. Send gas, or repair the node.',
    page: '/channels',
  }),
  'channel.continues': ({ name }) => ({
    what: `Vouchers of channels are claimed again on ${name}.`,
  }),
  'network.paused': ({ of, name }) => ({
    what: `${name} cannot settle. ${of('reason')}`,
    remedy: `Nothing is sold on ${name} (${of('network')}) until it can. docs/troubleshooting.md names what to do for each reason.`,
    page: '/networks',
  }),
  'network.resumed': ({ name }) => ({ what: `${name} settles again.` }),
  'certificate.fails': ({ of }) => ({
    what: `No good certificate for ${of('domain')}. ${of('reason')}`,
    remedy:
      'Clients cannot reach it by HTTPS, or soon cannot. certificate-failed in the log has the details.',
  }),
  'certificate.works': ({ of }) => ({ what: `The certificate of ${of('domain')} is good again.` }),
  'budget.spent': ({ of, name, ether }) => ({
    what: `The ${of('budget')} budget of the ${of('product')} on ${name} is spent. ${ether('spentWei')} of ${ether('budgetWei')} on ${of('day')}.`,
    remedy:
      'It begins again at 0:00 UTC. If you expect that much, raise gas_per_day_wei and restart.',
    page: '/networks',
  }),
}
