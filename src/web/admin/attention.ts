import type { Pending } from '../../../db/Ledger'
import type { Config, NetworkConfig } from '../../config/Config'
import { scrub } from '../../log'
import type { Details } from '../../settlement/state/availability'
import { type Html, html } from '../html'
import type { Sum } from './figures'
import { coin, coinAndUsd, duration, percent, qr, type Tone } from './parts'
import type { Sources } from './sources'

type Priced = Pick<NetworkConfig, 'name' | 'ethPriceUsd'>

/** Something that an operator should look at. */
export type Attention = {
  tone: Tone
  /** The kind, in a word or two. */
  word: string
  what: string
  more?: Html | string | undefined
  image?: Html | undefined
  link?: { href: string; text: string } | undefined
}

/** A budget needs attention when this part of it is spent. */
const budgetPart = 0.8

/** A payment that is in no block for longer than this needs attention, ms. */
const pendingMaxMs = 10 * 60_000

/** The paid and undelivered answers of the days that the overview shows. */
export type Missing = Pick<Sum, 'undelivered' | 'redeemable'>

/** Everything that needs attention, the most urgent first. */
export async function attentionOf(
  config: Config,
  sources: Sources,
  missing: Missing,
): Promise<Attention[]> {
  const networks = sources.networks()
  const of = (id: string) =>
    config.networks.find((each) => each.id === id) ?? { name: id, ethPriceUsd: 0 }
  const nameOf = (id: string) => of(id).name
  const [held, sponsors, pauses, pending] = [
    (await sources.heldOrders()) ?? [],
    await sources.spentBudgets(),
    await sources.ledger.pauses(),
    await sources.pending(),
  ]
  const storage = sources.storageFault()
  const otherHost = sources.otherHost()
  return [
    ...(storage === undefined ? [] : [storageFault(storage)]),
    ...held.map(
      ({ id, symbol, heldReason = '' }): Attention => ({
        tone: 'bad',
        word: 'held order',
        what: `${symbol}: ${heldReason}`,
        link: { href: `/admin/orders#${id}`, text: 'See the order' },
      }),
    ),
    ...undeliveredOf(missing),
    ...networks.flatMap((network) => pausedOf(network, of(network.network))),
    ...sources.openCircuits().map(
      (origin): Attention => ({
        tone: 'bad',
        word: 'open circuit',
        what: `${scrub(origin)} does not answer`,
        more: 'Nothing that needs it is sold until it answers again.',
      }),
    ),
    ...sources.refusedRoutes().map(
      ({ merchant, reason }): Attention => ({
        tone: 'bad',
        word: 'key refused',
        what: `${merchant}: ${reason}`,
        more: 'Nothing is sold there until a request of our own passes. Correct the key and load the file again.',
      }),
    ),
    ...pendingOf(pending, sources.now()),
    ...(otherHost === undefined ? [] : [localBaseUrl(config.service.baseUrl, otherHost)]),
    ...pauses.map(
      ({ kind, name }): Attention => ({
        tone: 'fair',
        word: 'sales paused',
        what: kind === 'network' ? nameOf(name) : name,
        more: `You paused this ${kind}. What is paid is completed.`,
        link: { href: kind === 'network' ? '/admin/networks' : '/admin/merchants', text: 'Resume' },
      }),
    ),
    ...(config.stock === undefined && config.merchants.every(({ routes }) => routes.length === 0)
      ? [nothingToSell]
      : []),
    ...config.merchants.flatMap(({ slug, outOfService }): Attention[] =>
      outOfService === undefined
        ? []
        : [
            {
              tone: 'fair',
              word: 'out of service',
              what: slug,
              more: html`Set <code>${outOfService}</code> and restart.`,
            },
          ],
    ),
    ...networks.flatMap((network) => budgetsOf(network, of(network.network))),
    ...sponsors.map(
      ({ network, reason }): Attention => ({
        tone: 'fair',
        word: 'budget spent',
        what: nameOf(network),
        more: reason,
      }),
    ),
  ]
}

/** Paid answers that did not reach their buyers: first those that can no longer be fetched. */
function undeliveredOf({ undelivered, redeemable }: Missing): Attention[] {
  const lost = undelivered - redeemable
  const link = { href: '/admin/payments?state=undelivered', text: 'See why and what to do' }
  return [
    ...(lost > 0
      ? [
          {
            tone: 'bad' as const,
            word: 'paid, not delivered',
            what: `${payments(lost)} of the last 30 days can no longer be fetched`,
            more: 'Send the amount back by hand. The ledger does not see it: the line stays here for 30 days.',
            link,
          },
        ]
      : []),
    ...(redeemable > 0
      ? [
          {
            tone: 'bad' as const,
            word: 'paid, not delivered',
            what: `${payments(redeemable)} without an answer: the buyer can still fetch it`,
            more: 'Repair the upstream before the time to fetch it is over.',
            link,
          },
        ]
      : []),
  ]
}

function payments(count: number): string {
  return `${count.toLocaleString('en')} ${count === 1 ? 'payment' : 'payments'}`
}

function pendingOf({ oldest }: Pending, now: number): Attention[] {
  const late = oldest.filter(({ createdAt }) => now - createdAt > pendingMaxMs)
  const [first] = late
  if (first === undefined) return []
  const age = duration(now - Math.min(...late.map(({ createdAt }) => createdAt)))
  return [
    {
      tone: 'fair',
      word: 'pending',
      what: `${payments(late.length)} without a block for up to ${age}`,
      more: 'Nothing is lost: the service looks for each of them until it is decided.',
      link: { href: '/admin/networks#pending', text: 'See the pending payments' },
    },
  ]
}

const nothingToSell: Attention = {
  tone: 'fair',
  word: 'nothing to sell',
  what: 'The file has no merchant with a route',
  more: 'Add a [[merchants]] block to the file, then reload it.',
  link: { href: '/admin/configuration', text: 'See the file' },
}

function localBaseUrl(baseUrl: string, host: string): Attention {
  return {
    tone: 'fair',
    word: 'base_url',
    what: `Offers name ${baseUrl}, and a request came for another host`,
    more: html`A client wrote <code>${host}</code>, which may be invented. If the service is public, set <code>base_url</code> to its address and restart.`,
    link: { href: '/admin/configuration', text: 'See the file' },
  }
}

function storageFault(code: string): Attention {
  return {
    tone: 'bad',
    word: 'storage',
    what: `The database cannot be written (${code})`,
    more: 'Nothing is sold until then. Free space on its disk, or make it writable.',
  }
}

function pausedOf({ network, ready, reason, remedy, relayers }: Details, of: Priced) {
  const { name } = of
  const own: Attention[] = []
  const isOfNetwork = !ready && !relayers.some((relayer) => relayer.reason === reason)
  if (isOfNetwork)
    own.push({
      tone: 'bad',
      word: 'network',
      what: `${name} cannot settle`,
      more: scrub([reason ?? 'unknown', remedy].filter(Boolean).join('; ')),
      link: { href: '/admin/networks', text: 'See the networks' },
    })
  for (const { relayer, ready: works, reason: why, remedy: what, fundWei } of relayers) {
    if (works) continue
    own.push({
      tone: 'bad',
      word: 'relayer paused',
      what: fundWei === undefined ? `${name}: ${scrub(why ?? '')}` : fundText(fundWei, of),
      more: html`${fundWei === undefined ? scrub(what ?? '') : 'To'} <code>${relayer}</code>`,
      image: fundWei === undefined ? undefined : fundCode(network, relayer, fundWei),
    })
  }
  return own
}

function fundText(wei: bigint, of: Priced): string {
  return `Send about ${coinAndUsd(wei, of)} on ${of.name}`
}

/** A wallet that reads it fills in chain, address and amount: https://eips.ethereum.org/EIPS/eip-681 */
function fundCode(network: string, relayer: string, wei: bigint): Html {
  const chainId = network.slice('eip155:'.length)
  const uri = `ethereum:${relayer}@${chainId}?value=${wei}`
  return qr(uri, `QR code: send ${coin(wei)} on chain ${chainId} to ${relayer}`)
}

function budgetsOf({ gas }: Details, of: Priced): Attention[] {
  return gas.flatMap(({ product, spentWei, budgetWei }): Attention[] => {
    const part = budgetWei === 0n ? 0 : Number((spentWei * 1000n) / budgetWei) / 1000
    if (part < budgetPart) return []
    return [
      {
        tone: part >= 1 ? 'bad' : 'fair',
        word: part >= 1 ? 'budget spent' : 'budget',
        what: `${percent(part, 1)} of today's gas of the ${product} on ${of.name}`,
        more: `${coinAndUsd(spentWei, of)} of ${coinAndUsd(budgetWei, of)}; it begins again at 0:00 UTC.`,
      },
    ]
  })
}
